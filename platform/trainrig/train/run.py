"""What a training run is told: what all runs share, and what is pretraining's own."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from trainrig.config import PLACE, RunFile, Settings
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
from trainrig.train.faults import Faults
from trainrig.train.held_out import HeldOut
from trainrig.train.retention import Checkpoints
from trainrig.train.workers import Workers, bounds


class Training(Settings):
    """How long to train, how, and what to do about faults."""

    steps: int = Field(ge=1)
    seed: int = Field(default=0, ge=0)  # of fresh weights; `batches.seed` is that of the data
    optimizer: Optimizer = AdamW()
    schedule: Schedule = Cosine()
    # Norm of the whole gradient above which it is scaled down (GPT-3, arXiv:2005.14165, app. B).
    clip_norm: float = Field(default=1.0, gt=0)
    threads: int = Field(default=1, ge=1)  # a worker; another number gives other bits
    parallel: Layout = FSDP()
    precision: Precision = Precision()
    recompute: Recompute | None = None  # None: all that the backward pass needs is kept
    compile: Compile | None = None  # None: layers run as they are written
    # The same bits at any number of workers (parallel/deterministic.py: how, and what it costs).
    deterministic: bool = True
    # Who own the micro-batches of a step in deterministic mode: as many workers may share in it.
    # Another number adds in another order. More cost memory: a whole gradient for each doubling
    # beyond the number of workers.
    virtual_workers: int = Field(default=8, ge=1)
    # Global batches in a row that may be passed over because their loss or gradient is not finite.
    max_skipped_steps: Annotated[int, PLACE] = Field(default=10, ge=0)
    checkpoints: Checkpoints = Checkpoints()
    faults: Faults = Faults()
    held_out: Annotated[HeldOut, PLACE] = HeldOut()
    # Steps whose batches wait in memory while another is trained on; 0: each is read when needed.
    prefetch_steps: Annotated[int, PLACE] = Field(default=2, ge=0)

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

    stage: Literal["pretrain"] = "pretrain"
    tokens: Annotated[str, PLACE]  # folder that `tokenize` wrote
    output: Annotated[str, PLACE]
    workers: Workers = 1
    cache: BlockCache = BlockCache()  # for tokens in a bucket
    # Run folder, or one checkpoint in it, to begin with the weights of; None: fresh ones. The
    # schedule, the data and the optimizer's memory are this run's own.
    continue_from: Annotated[str | None, PLACE] = None
    model: DecoderConfig | None = None  # None: that of `continue_from`
    # A plan that `trainrig plan` wrote: the report lays what it predicted under what came.
    plan: Annotated[str | None, PLACE] = None
    batches: BatchSettings
    objective: CausalLM = CausalLM()
    training: Training

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
