"""How long a run trains, how, and what it does about faults."""

import contextlib
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from trainrig.config import (
    NOT_IDENTITY,
    Settings,
)
from trainrig.errors import ConfigError
from trainrig.models.architecture.width_transfer import find_roles
from trainrig.models.decoder_config import DecoderConfig, parameter_shapes
from trainrig.models.encoder_decoder.config import EncoderDecoderConfig
from trainrig.models.kernels.choice import (
    SETTING,
    USUAL_GPU,
    AttentionCase,
    AttentionExecution,
    Card,
    Choice,
    choose_kernel,
)
from trainrig.optim import AdamW, Cosine, Optimizer, Schedule
from trainrig.optim.groups import WidthTransfer
from trainrig.optim.named_groups import NamedGroup, assign
from trainrig.parallel.activation_memory.recompute import Recompute
from trainrig.parallel.compiled import Compile
from trainrig.parallel.fallback import Fallback, check_order, list_units
from trainrig.parallel.layout import FSDP, Layout
from trainrig.parallel.offload import Offload
from trainrig.parallel.precision import Precision
from trainrig.train.averaging import Averaging
from trainrig.train.evaluations.settings import (
    BestBy,
    RunEvaluation,
    StopIf,
    check_named,
    check_names,
)
from trainrig.train.fault_settings import Faults
from trainrig.train.held_out import HeldOutSettings, Metrics, StepProfile
from trainrig.train.retention import Checkpoints
from trainrig.train.spikes import Spikes
from trainrig.train.worker_bounds import WorkerBounds, parse_bounds

# Steps that make up for the first one, which takes 8 to 16 s longer (124M and 1.3B on an H200).
WORTH_COMPILING = 1_000


@contextlib.contextmanager
def name_setting(setting: str) -> Iterator[None]:
    """Have what is refused inside name the `setting` that it is of."""
    try:
        yield
    except ValidationError as error:
        said = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise ValueError(f"{setting}: {said}") from None
    except ValueError as error:
        raise ValueError(f"{setting}: {error}") from None


class Training(Settings):
    """How long to train, how, and what to do about faults."""

    steps: int = Field(ge=1)  # optimizer steps to train
    # Random seed of fresh weights; `batches.seed` is that of the data.
    seed: int = Field(default=0, ge=0)
    optimizer: Optimizer = AdamW()  # optimizer, and its peak learning rate
    # Parameters that are trained otherwise than the rest, or frozen, by patterns of their names.
    groups: tuple[NamedGroup, ...] = ()
    schedule: Schedule = Cosine()  # how the learning rate rises and falls
    # Norm above which the whole gradient is scaled down to it (GPT-3, arXiv:2005.14165, app. B).
    clip_norm: float = Field(default=1.0, gt=0)
    # CPU threads of a worker; another number gives other bits.
    threads: int = Field(default=1, ge=1)
    parallel: Layout = FSDP()  # how the model is laid out over workers
    # Layouts for fewer workers than a replica of `parallel` takes, the larger first: the run goes
    # on in them after losses, and back in its own when workers come. Bits differ between layouts.
    fallbacks: Annotated[tuple[Fallback, ...], NOT_IDENTITY] = ()
    precision: Precision = Precision()  # number format to compute in
    # What to compute again in the backward pass, to save memory; None: nothing.
    recompute: Recompute | None = None
    # What to keep in the host's memory, to leave that of GPUs to the rest.
    offload: Annotated[Offload, NOT_IDENTITY] = Offload()
    # How to compile the layers; false: not at all; None: as by an empty table where `pretrain`
    # trains a dense decoder for 1,000 steps and more on GPUs, in a layout that divides no layers,
    # else not at all.
    compile: Compile | Literal[False] | None = None
    # Whether queries, keys and values of a layer are one product, and so are gate and up, for GPUs
    # that small products leave idle. Parameters and checkpoints stay as they are; bits differ.
    fuse_projections: bool = False
    # How attention is computed; another kernel gives other bits.
    attention: Annotated[AttentionExecution, NOT_IDENTITY] = AttentionExecution()
    deterministic: bool = True  # whether results are the same bits at any number of workers
    # Most workers that may share a step in deterministic mode. Another number gives other bits; a
    # doubling beyond the number of workers costs the memory of a gradient.
    virtual_workers: int = Field(default=8, ge=1)
    # Most steps in a row to skip because the loss or gradient is not finite, before the run ends;
    # those that `spikes` sees to are none of them.
    max_skipped_steps: Annotated[int, NOT_IDENTITY] = Field(default=10, ge=0)
    averaging: Averaging = Averaging()  # averages of the weights to keep
    # What to do about spikes of the loss; None: nothing but for losses that are not finite.
    spikes: Spikes | None = Spikes()
    # Ranges of data steps, counted from 0, to train on nothing of: from the first of each pair up
    # to, without, the second.
    skip_data: tuple[tuple[int, int], ...] = ()
    checkpoints: Checkpoints = Checkpoints()  # when to save, and what to keep
    faults: Faults = Faults()  # how failures and stops are met
    # Benchmarks to ask checkpoints of the run while it trains.
    evaluations: Annotated[tuple[RunEvaluation, ...], NOT_IDENTITY] = ()
    stop_if: StopIf | None = None  # scores that end the run early; None: none do
    # Score by which one checkpoint is the best, and is kept; None: none is.
    best: Annotated[BestBy | None, NOT_IDENTITY] = None
    # When to measure the held-out loss, and on how much.
    held_out: Annotated[HeldOutSettings, NOT_IDENTITY] = HeldOutSettings()
    metrics: Annotated[Metrics, NOT_IDENTITY] = Metrics()  # how much of the run is measured
    # Steps to record operation by operation; None: none.
    profile: Annotated[StepProfile | None, NOT_IDENTITY] = None
    # Steps whose batches are read ahead; 0: each is read when it is needed.
    prefetch_steps: Annotated[int, NOT_IDENTITY] = Field(default=2, ge=0)

    @property
    def collective_timeout(self) -> float:
        """Seconds that a collective waits for a rank, which may be compiling what another's cache
        had."""
        wanted = self.faults.collective_timeout
        return max(wanted, self.faults.start_limit) if self.compile else wanted

    def resolve(self, has_bfloat16: bool, compiles: bool) -> Self:
        """The same, with the number format named that its devices compute in, and layers compiled
        if `compiles` and nothing is said of it; `has_bfloat16`: the devices are accelerators that
        have it."""
        changes: dict[str, Any] = {"precision": self.precision.resolve(has_bfloat16)}
        divides = self.parallel.context or self.parallel.tensor or self.parallel.expert
        if compiles and self.compile is None and not divides and self.steps >= WORTH_COMPILING:
            changes["compile"] = Compile()
        return self.model_copy(update=changes)

    @model_validator(mode="after")
    def _deterministic_when_sliced(self) -> Self:
        if self.deterministic and (setting := self.parallel.inexact_by()):
            raise ValueError(
                f"parallel.{setting} adds gradients in an order that depends on the number of "
                "workers; set deterministic = false, or parallel.kind = 'FSDP' and no reduce"
            )
        return self

    @model_validator(mode="after")
    def _layout_goes_with_the_rest(self) -> Self:
        compiled, again = bool(self.compile), self.recompute.kind if self.recompute else None
        self.parallel.check_beside(compiled, again, self.fuse_projections)
        tensor = self.parallel.tensor
        self.offload.check_beside(self.recompute, tensor is not None and tensor.sequence_parallel)
        if self.parallel.tensor:
            own = [each.optimizer.kind for each in self.groups if each.optimizer]
            self.parallel.tensor.check_training(self.precision.compute, [self.optimizer.kind, *own])
        return self

    @model_validator(mode="after")
    def _scales_are_of_whole_matrices(self) -> Self:
        if self.fuse_projections and self.precision.compute == "float8":
            raise ValueError(
                "fuse_projections joins matrices that precision.compute = 'float8' scales one by "
                "one; leave out training.fuse_projections, or use 'bfloat16'"
            )
        return self

    @model_validator(mode="after")
    def _fallbacks_go_with_the_rest(self) -> Self:
        check_order(self.parallel, self.fallbacks)
        for number, laid_out in enumerate(self.layouts[1:]):
            with name_setting(f"fallbacks[{number}]"):
                type(self).model_validate(dict(laid_out))
        return self

    @model_validator(mode="after")
    def _skipped_ranges_are_ranges(self) -> Self:
        for begin, end in self.skip_data:
            if not 0 <= begin < end:
                raise ValueError(
                    f"skip_data has [{begin}, {end}], which names no data; give the first data "
                    "step to skip and the one after the last, as in [[120, 140]]"
                )
        return self

    @model_validator(mode="after")
    def _scores_are_there_to_decide_by(self) -> Self:
        check_names(self.evaluations)
        for where, named in (("stop_if", self.stop_if), ("best", self.best)):
            if named is not None:
                check_named(self.evaluations, named, where)
        return self

    def saves_after(self, step: int) -> bool:
        """Whether a checkpoint is made after `step`: to go on from, or to be scored."""
        return self.checkpoints.due(step, self.steps) or any(
            each.due(step, self.steps) for each in self.evaluations
        )

    def make_paths_absolute(self) -> Self:
        """The same, for processes that run in other folders."""
        found = tuple(each.make_paths_absolute() for each in self.evaluations)
        return self.model_copy(update={"evaluations": found})

    def choose_attention(self, model: DecoderConfig, card: Card) -> Choice:
        """Return the kernel of attention for `model` on `card`, in this layout. Raises ConfigError
        if the one that `attention` names cannot compute it there."""
        if isinstance(model, EncoderDecoderConfig):
            if self.attention.kernel != "auto":
                raise ConfigError(
                    f"{SETTING} = '{self.attention.kernel}': an encoder and decoder read all rows "
                    "under masks, with biases that are learnt; use 'auto'"
                )
            return Choice(None, "rows are read under masks")
        context = self.parallel.context
        in_ring = context is not None and context.keys == "ring"
        case = AttentionCase.describe(model, self.precision.stream, in_ring)
        return choose_kernel(self.attention.kernel, case, card)

    def check_attention(self, model: DecoderConfig, card: Card | None = None) -> None:
        """Raise ConfigError if the kernel that `attention` names cannot compute `model` on `card`
        in one of the layouts; None: on a usual GPU, in whose number format `auto` is then."""
        wanted = self if card else self.resolve(has_bfloat16=True, compiles=False)
        for laid_out in wanted.layouts:
            laid_out.choose_attention(model, card or USUAL_GPU)

    def check_parameters(self, model: DecoderConfig) -> None:
        """Raise ConfigError if `groups`, optimizers or the kernel of attention do not fit
        `model`."""
        self.check_attention(model)
        shapes, transfer = parameter_shapes(model), find_width_transfer(model)
        assigned = assign(shapes, self.groups)
        for parallel in (each.parallel for each in self.layouts):
            if parallel.expert:
                parallel.expert.check_optimizers(shapes, assigned, self.optimizer)
            if parallel.pipeline and assigned:
                frozen = {name for name, group in assigned.items() if group.freeze}
                parallel.pipeline.check_frozen(model, shapes.keys() - frozen)
        for name, shape in shapes.items() if transfer else ():
            assert transfer is not None
            group = assigned.get(name)
            if group is None or not group.freeze:
                chosen = group.optimizer if group and group.optimizer else self.optimizer
                transfer.share(chosen, name, shape)

    def check_adapters(self) -> None:
        """Raise ValueError if it is not for layers with adapters."""
        if self.fuse_projections:
            raise ValueError(
                "training.fuse_projections and [lora]: a frozen matrix with an adapter is "
                "multiplied by itself; leave out one of the two"
            )

    @property
    def layouts(self) -> tuple[Self, ...]:
        """Itself in its own layout, then in each that it falls back on."""
        own = self.model_copy(update={"fallbacks": ()})
        return own, *(
            own.model_copy(
                update={"parallel": each.parallel, "recompute": each.recompute or self.recompute}
            )
            for each in self.fallbacks
        )

    def bound_workers(self, workers: int | tuple[int, int]) -> WorkerBounds:
        """What `workers` mean in its layouts."""
        return parse_bounds(workers, list_units(self.parallel, self.fallbacks))

    def lay_out(self, workers: int) -> Self:
        """Itself in the layout in which a run has so many `workers`."""
        if not self.fallbacks:
            return self
        return self.layouts[self.bound_workers(workers).find_layout(workers)]

    def check_workers(self, workers: int | tuple[int, int]) -> None:
        """Raise ConfigError if any number of whole replicas within `workers` cannot share in a
        step, in the layout in which there are so many."""
        if not self.fallbacks:
            self._check_own_workers(workers)
            return
        wanted = self.bound_workers(workers)
        self.parallel.check_workers(wanted.most)
        for laid_out, sizes in zip(self.layouts, wanted.list_sizes(), strict=True):
            for size in sizes:
                laid_out._check_own_workers(size)

    def _check_own_workers(self, workers: int | tuple[int, int]) -> None:
        wanted = parse_bounds(workers)
        for count in {*range(wanted.least, wanted.most, self.parallel.replica), wanted.most}:
            self.parallel.check_workers(count)
        sharing = self.parallel.data_workers(wanted.most)
        if self.deterministic and sharing > self.virtual_workers:
            most = self.virtual_workers * wanted.most // sharing
            raise ConfigError(
                f"training.virtual_workers ({self.virtual_workers}) is below the {sharing} "
                f"workers; set it to {sharing} (a new run: it changes the last bits), or use "
                f"at most {most} workers"
            )


def find_width_transfer(model: DecoderConfig) -> WidthTransfer | None:
    """How rates go with the width of `model`; None: not at all."""
    if model.mup is None:
        return None
    return WidthTransfer(model.mup.multiple(model.channels), find_roles(parameter_shapes(model)))
