"""What a training run is told: what all runs share, and what is pretraining's own."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from trainrig import storage
from trainrig.config import PLACE, RunFile, Settings
from trainrig.models.decoder import DecoderConfig
from trainrig.optim import AdamW, Cosine, Optimizer, Schedule
from trainrig.tokens.mixing.stages import BatchSettings
from trainrig.tokens.shards.blocks import BlockCache


def _on_disk(path: str) -> str:
    if path.startswith(storage.S3):
        raise ValueError(f"a run folder has to be on a disk that all workers share, not {path}")
    return path


# Events and metrics are appended to, which S3 cannot do.
RunPath = Annotated[str, PLACE, AfterValidator(_on_disk)]


class Checkpoints(Settings):
    """When a run saves itself, and what it keeps."""

    every: int = Field(default=100, ge=1)  # steps; the last step always makes one
    keep: Annotated[int, PLACE] = Field(default=2, ge=1)  # the newest that many


class Faults(Settings):
    """How a run meets the failure of its workers."""

    max_restarts: Annotated[int, PLACE] = Field(default=5, ge=0)  # without a new checkpoint between
    # Seconds that a collective waits for a rank before the attempt counts as failed.
    collective_timeout: Annotated[float, PLACE] = Field(default=60.0, gt=0)


class Training(Settings):
    """How long to train, how, and what to do about faults."""

    steps: int = Field(ge=1)
    seed: int = Field(default=0, ge=0)  # of fresh weights; `batches.seed` is that of the data
    optimizer: Optimizer = AdamW()
    schedule: Schedule = Cosine()
    # Norm of the whole gradient above which it is scaled down (GPT-3, arXiv:2005.14165, app. B).
    clip_norm: float = Field(default=1.0, gt=0)
    threads: int = Field(default=1, ge=1)  # a worker; another number gives other bits
    checkpoints: Checkpoints = Checkpoints()
    faults: Faults = Faults()
    # Steps whose batches wait in memory while another is trained on; 0: each is read when needed.
    prefetch_steps: Annotated[int, PLACE] = Field(default=2, ge=0)


class Pretraining(RunFile):
    """`trainrig pretrain`: a fresh model on token shards."""

    verb: ClassVar[str] = "pretrain"

    stage: Literal["pretrain"] = "pretrain"
    tokens: Annotated[str, PLACE]  # folder that `tokenize` wrote
    output: RunPath
    workers: Annotated[int, PLACE] = Field(default=1, ge=1)
    cache: BlockCache = BlockCache()  # for tokens in a bucket
    model: DecoderConfig
    batches: BatchSettings
    training: Training

    @model_validator(mode="after")
    def _sequence_fits_model(self) -> Self:
        for stage in self.batches.resolved():
            check_positions(stage.sequence_length, self.model)
        return self


def check_positions(sequence_length: int, model: DecoderConfig) -> None:
    """Raise ValueError if sequences are longer than the model can tell positions apart."""
    if sequence_length > model.positions:
        raise ValueError(
            f"sequence_length ({sequence_length} tokens) is beyond the model's {model.positions} "
            f"positions; lower it, or set model.positions = {sequence_length}"
        )
