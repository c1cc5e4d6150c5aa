"""What a training run is told: what all runs share, and what is pretraining's own."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from trainrig.config import NOT_IDENTITY, RunFile, Settings
from trainrig.errors import ConfigError
from trainrig.models.decoder_config import DecoderConfig
from trainrig.objectives import CausalLM
from trainrig.optim import AdamW, Cosine, Optimizer, Schedule
from trainrig.parallel.compiled import Compile
from trainrig.parallel.layout import FSDP, Layout
from trainrig.parallel.precision import Precision
from trainrig.parallel.recompute import Recompute
from trainrig.tokens.mixing.stages import BatchSettings
from trainrig.tokens.shards.blocks import BlockCache
from trainrig.train.fault_settings import Faults
from trainrig.train.held_out import HeldOutSettings
from trainrig.train.retention import Checkpoints
from trainrig.train.worker_bounds import Workers, bounds


class Training(Settings):
    """How long to train, how, and what to do about faults."""

    steps: int = Field(ge=1)  # optimizer steps to train
    # Random seed of fresh weights; `batches.seed` is that of the data.
    seed: int = Field(default=0, ge=0)
    optimizer: Optimizer = AdamW()  # optimizer, and its peak learning rate
    schedule: Schedule = Cosine()  # how the learning rate rises and falls
    # Norm above which the whole gradient is scaled down to it (GPT-3, arXiv:2005.14165, app. B).
    clip_norm: float = Field(default=1.0, gt=0)
    # CPU threads of a worker; another number gives other bits.
    threads: int = Field(default=1, ge=1)
    parallel: Layout = FSDP()  # how the model is laid out over workers
    precision: Precision = Precision()  # number format to compute in
    # What to compute again in the backward pass, to save memory; None: nothing.
    recompute: Recompute | None = None
    compile: Compile | None = None  # how to compile the layers; None: not at all
    deterministic: bool = True  # whether results are the same bits at any number of workers
    # Most workers that may share a step in deterministic mode. Another number gives other bits; a
    # doubling beyond the number of workers costs the memory of a gradient.
    virtual_workers: int = Field(default=8, ge=1)
    # Most steps in a row to skip because the loss or gradient is not finite, before the run ends.
    max_skipped_steps: Annotated[int, NOT_IDENTITY] = Field(default=10, ge=0)
    checkpoints: Checkpoints = Checkpoints()  # when to save, and what to keep
    faults: Faults = Faults()  # how failures and stops are met
    # When to measure the held-out loss, and on how much.
    held_out: Annotated[HeldOutSettings, NOT_IDENTITY] = HeldOutSettings()
    # Steps whose batches are read ahead; 0: each is read when it is needed.
    prefetch_steps: Annotated[int, NOT_IDENTITY] = Field(default=2, ge=0)

    @property
    def collective_timeout(self) -> float:
        """Seconds that a collective waits for a rank, which may be compiling what another's cache
        had."""
        wanted = self.faults.collective_timeout
        return max(wanted, self.faults.start_limit) if self.compile else wanted

    @model_validator(mode="after")
    def _deterministic_when_sliced(self) -> Self:
        if self.deterministic and self.parallel.kind != "FSDP":
            raise ValueError(
                f"parallel.kind = '{self.parallel.kind}' adds gradients in an order that depends "
                "on the number of workers; set deterministic = false, or parallel.kind = 'FSDP'"
            )
        return self

    def check_workers(self, workers: int | tuple[int, int]) -> None:
        """Raise ConfigError if any number of workers within `workers` cannot share in a step."""
        wanted = bounds(workers)
        if self.deterministic and wanted.most > self.virtual_workers:
            raise ConfigError(
                f"training.virtual_workers ({self.virtual_workers}) is below the {wanted.most} "
                f"workers; set it to {wanted.most} (a new run: it changes the last bits), or use "
                f"at most {self.virtual_workers} workers"
            )
        for count in range(wanted.least, wanted.most + 1):
            self.parallel.check_workers(count)


class Pretraining(RunFile):
    """`trainrig pretrain`: a fresh model, or another run's, on token shards."""

    verb: ClassVar[str] = "pretrain"
    resumes: ClassVar[bool] = True

    stage: Literal["pretrain"] = "pretrain"
    tokens: Annotated[str, NOT_IDENTITY]  # folder that `tokenize` wrote
    output: Annotated[str, NOT_IDENTITY]  # run folder to write, on disk or s3://
    workers: Workers = 1  # worker processes: a number, or [fewest, most] to take what room there is
    cache: BlockCache = BlockCache()  # cache on this machine for tokens in a bucket
    # Run folder or checkpoint whose weights to begin with; schedule, data and optimizer state are
    # this run's own; None: fresh weights.
    continue_from: Annotated[str | None, NOT_IDENTITY] = None
    model: DecoderConfig | None = None  # sizes of the model; None: that of `continue_from`
    # Plan that `trainrig plan` wrote, for the report to compare with; None: no comparison.
    plan: Annotated[str | None, NOT_IDENTITY] = None
    batches: BatchSettings  # what a batch is made of
    objective: CausalLM = CausalLM()  # what training makes small
    training: Training  # how long to train, and how

    @model_validator(mode="after")
    def _sequence_fits_model(self) -> Self:
        if self.model is None and self.continue_from is None:
            raise ValueError("[model] is missing; give it, or the run to `continue_from`")
        if self.model is not None:
            self.check_positions(self.model)
        return self

    def check_positions(self, model: DecoderConfig) -> None:
        """Raise ValueError if a stage's sequences are longer than `model` can tell apart."""
        for stage in self.batches.resolved():
            check_positions(stage.sequence_length, model)


def check_positions(sequence_length: int, model: DecoderConfig) -> None:
    """Raise ValueError if sequences are longer than the model can tell positions apart."""
    if sequence_length > model.positions:
        raise ValueError(
            f"sequence_length ({sequence_length} tokens) is beyond the model's {model.positions} "
            f"positions; lower it, or set model.positions = {sequence_length}"
        )
