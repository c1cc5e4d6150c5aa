"""What fine-tuning is told."""

from typing import Annotated, ClassVar, Literal

from trainrig.config import NOT_IDENTITY, RunFile
from trainrig.objectives import SFT
from trainrig.tokens.batches import BatchSizes
from trainrig.train.run_file import Training
from trainrig.train.worker_bounds import Workers


class FineTuning(RunFile):
    """`trainrig posttrain`: a checkpoint, taught by conversations."""

    verb: ClassVar[str] = "posttrain"
    resumes: ClassVar[bool] = True

    stage: Literal["posttrain"] = "posttrain"
    checkpoint: Annotated[str, NOT_IDENTITY]  # run folder or checkpoint of the model to start from
    conversations: Annotated[str, NOT_IDENTITY]  # JSONL file of conversations to train on
    # JSONL file to measure the loss on, of which the first `training.held_out.rows` are read; None:
    # no held-out loss.
    held_out_conversations: Annotated[str | None, NOT_IDENTITY] = None
    output: Annotated[str, NOT_IDENTITY]  # run folder to write, on disk or s3://
    workers: Workers = 1  # worker processes: a number, or [fewest, most] to take what room there is
    batches: BatchSizes  # how many conversations make a batch, and how long they may be
    objective: SFT = SFT()  # what training makes small
    training: Training  # how long to train, and how
