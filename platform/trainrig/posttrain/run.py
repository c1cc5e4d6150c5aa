"""What fine-tuning is told."""

from typing import Annotated, ClassVar, Literal

from trainrig.config import PLACE, RunFile
from trainrig.objectives import SFT
from trainrig.tokens.batches import BatchSizes
from trainrig.train.run import Training
from trainrig.train.workers import Workers


class FineTuning(RunFile):
    """`trainrig posttrain`: a checkpoint, taught by conversations."""

    verb: ClassVar[str] = "posttrain"

    stage: Literal["posttrain"] = "posttrain"
    checkpoint: Annotated[str, PLACE]  # run folder of the model to start from, or one step in it
    conversations: Annotated[str, PLACE]  # JSONL
    # JSONL; the loss on its first `training.held_out.rows` is measured as the run goes on.
    held_out_conversations: Annotated[str | None, PLACE] = None
    output: Annotated[str, PLACE]
    workers: Workers = 1
    batches: BatchSizes
    objective: SFT = SFT()
    training: Training
