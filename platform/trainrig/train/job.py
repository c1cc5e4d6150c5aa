"""What the workers of a training run are told."""

from collections.abc import Callable
from dataclasses import dataclass, field

from trainrig.models.decoder_config import DecoderConfig
from trainrig.objectives import CausalLM, Objective
from trainrig.tokens.batches import Batches
from trainrig.train.held_out import HeldOutSets, nothing_held_out
from trainrig.train.run_file import Training


@dataclass(frozen=True)
class TrainingJob:
    """Everything that a worker needs to know of its run. Travels to the workers by pickle."""

    folder: str  # the run folder
    model: DecoderConfig  # its vocabulary settled
    training: Training
    make_batches: Callable[[], Batches]
    tokenizer: str  # the text of its tokenizer.json: a checkpoint is of use by itself
    objective: Objective = field(default_factory=CausalLM)
    initial_weights: str | None = None  # a checkpoint to start from; None: fresh ones
    # A checkpoint of another run, on the same data up to there, whose whole state this one takes
    # over and goes on from: weights, optimizer and counters.
    branch_from: str | None = None
    # What each rank measures the held-out loss on; None of it: the run has no held-out loss.
    make_held_out: Callable[[], HeldOutSets | None] = nothing_held_out
