"""The `training` table of run files: duration, optimisation, layout, and handling of faults."""

import contextlib
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from trainrig.config import NOT_IDENTITY, Settings
from trainrig.errors import ConfigError
from trainrig.models.architecture.decoder_config import DecoderConfig, parameter_shapes
from trainrig.models.architecture.encoder_configs import EncoderDecoderConfig
from trainrig.models.architecture.initialisation import find_roles
from trainrig.models.kernels import kernel_choice
from trainrig.optim import AdamW, Cosine, Optimizer, Schedule
from trainrig.optim.named_groups import NamedGroup, assign, compute_width_share
from trainrig.optim.parameter_groups import WidthTransfer
from trainrig.parallel.layer_compilation import Compile
from trainrig.parallel.layout import FSDP, Fallback, Layout, check_order, list_units
from trainrig.parallel.precision import Precision
from trainrig.parallel.recompute import Offload, Recompute
from trainrig.train.averaging import Averaging
from trainrig.train.evaluations import BestBy, RunEvaluation, StopIf, check_named, check_names
from trainrig.train.held_out_loss import HeldOutSettings, Metrics, StepProfile
from trainrig.train.retention import Checkpoints
from trainrig.train.run_file.worker_settings import Faults, WorkerBounds, parse_bounds
from trainrig.train.spikes import Spikes

# Steps that compensate for compilation, which makes the first step 8 to 16 s longer (124M and 1.3B
# on an H200).
WORTH_COMPILING = 1_000


@contextlib.contextmanager
def name_setting(setting: str) -> Iterator[None]:
    """Prefix the ValueErrors raised in the block with the name of the `setting` they concern."""
    try:
        yield
    except ValidationError as error:
        said = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise ValueError(f"{setting}: {said}") from None
    except ValueError as error:
        raise ValueError(f"{setting}: {error}") from None


class Training(Settings):
    """Duration, optimisation, layout and fault handling of a training run."""

    steps: int = Field(ge=1)  # number of optimizer steps
    # Random seed of the initial weights; `batches.seed` is the seed of the data.
    seed: int = Field(default=0, ge=0)
    optimizer: Optimizer = AdamW()  # optimizer, with its peak learning rate
    # Groups of parameters that are frozen or have other settings, by patterns of their names.
    groups: tuple[NamedGroup, ...] = ()
    schedule: Schedule = Cosine()  # schedule of the learning rate
    # Gradient norm above which the whole gradient is scaled down to it (GPT-3, arXiv:2005.14165,
    # app. B).
    clip_norm: float = Field(default=1.0, gt=0)
    # CPU threads of each worker. Changing the number changes the last bits of results.
    threads: int = Field(default=1, ge=1)
    parallel: Layout = FSDP()  # how the model is distributed over workers
    # Layouts for fewer workers than a replica of `parallel` needs, largest first. After losing
    # workers, the run continues in one of them, and returns to its own layout when workers come
    # back. Results are not bit-identical across layouts.
    fallbacks: Annotated[tuple[Fallback, ...], NOT_IDENTITY] = ()
    precision: Precision = Precision()  # number format to compute in
    # Activations to recompute in the backward pass, to save memory; None recomputes nothing.
    recompute: Recompute | None = None
    # What to keep in host memory, to save GPU memory.
    offload: Annotated[Offload, NOT_IDENTITY] = Offload()
    # How to compile the layers; false: never. None: with default settings where `pretrain` trains a
    # dense decoder for 1,000 steps or more on GPUs, in a layout that does not divide layers;
    # otherwise not.
    compile: Compile | Literal[False] | None = None
    # Whether to compute queries, keys and values of a layer in one matrix product, and gate and up
    # projections in another, for GPUs that small products do not fill. Parameters and checkpoints
    # stay the same; the last bits of results change.
    fuse_projections: bool = False
    # Attention kernel. Another kernel changes the last bits of results.
    attention: Annotated[kernel_choice.AttentionExecution, NOT_IDENTITY] = (
        kernel_choice.AttentionExecution()
    )
    deterministic: bool = True  # Whether results are bit-identical at any number of workers
    # Maximum number of workers that share a step in deterministic mode. Changing it changes the
    # last bits of results. Each doubling beyond the number of workers costs the memory of one
    # gradient.
    virtual_workers: int = Field(default=8, ge=1)
    # Consecutive steps that may be skipped because the loss or gradient is not finite, before the
    # run ends with an error. Steps that `spikes` handles do not count.
    max_skipped_steps: Annotated[int, NOT_IDENTITY] = Field(default=10, ge=0)
    averaging: Averaging = Averaging()  # averages of the weights to keep
    # Handling of loss spikes; None skips only steps whose loss or gradient is not finite.
    spikes: Spikes | None = Spikes()
    # Data steps to leave out of training, counted from 0, as pairs [first, one after the last].
    skip_data: tuple[tuple[int, int], ...] = ()
    checkpoints: Checkpoints = Checkpoints()  # when to save checkpoints, and which to keep
    faults: Faults = Faults()  # handling of failures and stop requests
    # Benchmarks that score checkpoints of the run while it trains.
    evaluations: Annotated[tuple[RunEvaluation, ...], NOT_IDENTITY] = ()
    stop_if: StopIf | None = None  # condition on scores that ends the run early; None: never
    # Score that decides which checkpoint is the best, which is always kept; None: no best one.
    best: Annotated[BestBy | None, NOT_IDENTITY] = None
    # When to measure the held-out loss, and on how many rows.
    held_out: Annotated[HeldOutSettings, NOT_IDENTITY] = HeldOutSettings()
    # how often metrics are measured
    metrics: Annotated[Metrics, NOT_IDENTITY] = Metrics()
    # Steps to profile operation by operation; None: none.
    profile: Annotated[StepProfile | None, NOT_IDENTITY] = None
    # Number of steps whose batches are read in advance; 0 reads each batch when it is needed.
    prefetch_steps: Annotated[int, NOT_IDENTITY] = Field(default=2, ge=0)

    @property
    def collective_timeout(self) -> float:
        """Seconds that a collective operation waits for a rank.

        With compilation it is at least `faults.start_limit`: a rank may compile what another has
        cached.
        """
        wanted = self.faults.collective_timeout
        return max(wanted, self.faults.start_limit) if self.compile else wanted

    def resolve(self, has_bfloat16: bool, compiles: bool) -> Self:
        """Return a copy with the number format and the compilation chosen for the devices.

        `has_bfloat16`: whether they are accelerators that support it. `compiles`: whether to
        compile if `compile` is None and the run is long enough.
        """
        changes: dict[str, Any] = {"precision": self.precision.resolve(has_bfloat16)}
        compiles = compiles and self.parallel.compiles
        if compiles and self.compile is None and self.steps >= WORTH_COMPILING:
            changes["compile"] = Compile()
        return self.model_copy(update=changes)

    @model_validator(mode="after")
    def _check_determinism(self) -> Self:
        if self.deterministic and (setting := self.parallel.inexact_by()):
            raise ValueError(
                f"parallel.{setting} adds gradients in an order that depends on the number of "
                "workers; set deterministic = false, or parallel.kind = 'FSDP' and no reduce"
            )
        return self

    @model_validator(mode="after")
    def _check_layout_settings(self) -> Self:
        compiled = bool(self.compile)
        again = self.recompute.kind if self.recompute else None
        self.parallel.check_beside(compiled, again, self.fuse_projections)
        tensor = self.parallel.tensor
        self.offload.check_beside(self.recompute, tensor is not None and tensor.sequence_parallel)
        if self.parallel.tensor:
            own = [group.optimizer for group in self.groups if group.optimizer]
            self.parallel.tensor.check_training(self.precision.compute, [self.optimizer, *own])
        return self

    @model_validator(mode="after")
    def _check_float8_fusion(self) -> Self:
        if self.fuse_projections and self.precision.compute == "float8":
            raise ValueError(
                "fuse_projections joins matrices that precision.compute = 'float8' scales one by "
                "one; leave out training.fuse_projections, or use 'bfloat16'"
            )
        return self

    @model_validator(mode="after")
    def _check_fallback_settings(self) -> Self:
        check_order(self.parallel, self.fallbacks)
        for number, laid_out in enumerate(self.layouts[1:]):
            with name_setting(f"fallbacks[{number}]"):
                type(self).model_validate(dict(laid_out))
        return self

    @model_validator(mode="after")
    def _check_skip_data(self) -> Self:
        for begin, end in self.skip_data:
            if not 0 <= begin < end:
                raise ValueError(
                    f"skip_data has [{begin}, {end}], which names no data; give the first data "
                    "step to skip and the one after the last, as in [[120, 140]]"
                )
        return self

    @model_validator(mode="after")
    def _check_deciding_scores(self) -> Self:
        check_names(self.evaluations)
        for where, named in (("stop_if", self.stop_if), ("best", self.best)):
            if named is not None:
                check_named(self.evaluations, named, where)
        return self

    def saves_after(self, step: int) -> bool:
        """Return whether a checkpoint is saved after `step`, to resume from or to be scored."""
        return self.checkpoints.due(step, self.steps) or any(
            evaluation.due(step, self.steps) for evaluation in self.evaluations
        )

    def make_paths_absolute(self) -> Self:
        """Return a copy with absolute paths, for processes with other working directories."""
        found = tuple(evaluation.make_paths_absolute() for evaluation in self.evaluations)
        return self.model_copy(update={"evaluations": found})

    def choose_attention(
        self, model: DecoderConfig, card: kernel_choice.Card
    ) -> kernel_choice.KernelChoice:
        """Return the attention kernel for `model` on `card`, in this layout.

        Raises ConfigError if the kernel that `attention` names cannot compute it there.
        """
        if isinstance(model, EncoderDecoderConfig):
            if self.attention.kernel != "auto":
                raise ConfigError(
                    f"{kernel_choice.SETTING} = '{self.attention.kernel}': an encoder and decoder "
                    "read all rows under masks, with learnt biases; use 'auto'"
                )
            return kernel_choice.KernelChoice(None, "rows are read under masks")
        context = self.parallel.context
        in_ring = context is not None and context.keys == "ring"
        case = kernel_choice.AttentionCase.describe(model, self.precision.stream, in_ring)
        return kernel_choice.choose_kernel(self.attention.kernel, case, card)

    def check_attention(self, model: DecoderConfig, card: kernel_choice.Card | None = None) -> None:
        """Raise ConfigError if the named attention kernel cannot compute `model` in some layout.

        `card` None stands for a usual GPU and its number format.
        """
        wanted = self if card else self.resolve(has_bfloat16=True, compiles=False)
        for laid_out in wanted.layouts:
            laid_out.choose_attention(model, card or kernel_choice.USUAL_GPU)

    def check_parameters(self, model: DecoderConfig) -> None:
        """Raise ConfigError if groups, optimizers or the attention kernel do not fit `model`."""
        self.check_attention(model)
        shapes = parameter_shapes(model)
        transfer = find_width_transfer(model)
        assigned = assign(shapes, self.groups)
        for parallel in (layout.parallel for layout in self.layouts):
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
                compute_width_share(transfer, chosen, name, shape)

    def check_adapters(self) -> None:
        """Raise ValueError if a setting does not support layers with adapters."""
        if self.fuse_projections:
            raise ValueError(
                "training.fuse_projections and [lora]: a frozen matrix with an adapter is "
                "multiplied alone; leave out one of the two"
            )

    @property
    def layouts(self) -> tuple[Self, ...]:
        """Copies of these settings in their own layout, then in each fallback layout."""
        own = self.model_copy(update={"fallbacks": ()})
        return own, *(
            own.model_copy(
                update={
                    "parallel": fallback.parallel,
                    "recompute": fallback.recompute or self.recompute,
                }
            )
            for fallback in self.fallbacks
        )

    def bound_workers(self, workers: int | tuple[int, int]) -> WorkerBounds:
        """Parse `workers` into limits, with the multiples of each layout."""
        return parse_bounds(workers, list_units(self.parallel, self.fallbacks))

    def lay_out(self, workers: int) -> Self:
        """Return these settings in the layout that a run with `workers` uses."""
        if not self.fallbacks:
            return self
        return self.layouts[self.bound_workers(workers).find_layout(workers)]

    @property
    def virtual_limit(self) -> int | None:
        """`virtual_workers` in deterministic mode; None: workers share a step as they are."""
        return self.virtual_workers if self.deterministic else None

    def check_workers(self, workers: int | tuple[int, int]) -> None:
        """Raise ConfigError if some number of workers within `workers` cannot share a step.

        Each number is checked in the layout that it uses.
        """
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
    """Return how learning rates scale with the width of `model`; None without muP."""
    if model.mup is None:
        return None
    return WidthTransfer(model.mup.multiple(model.channels), find_roles(parameter_shapes(model)))
