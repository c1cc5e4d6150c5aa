"""Parameters that a device holds of a model, by how it is trained, and state kept on the host.

A model is trained whole, except for frozen groups; or by adapters on frozen weights, in the format
`lora.base` (models/lora.py: int8 has a float32 scale for each row, tables are never int8,
and norms, biases, experts and routers stay float32); or it is frozen. What `training.offload` keeps
in the host's memory takes only its transfer buffers on the device.
"""

import heapq
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self

from trainrig.estimate.activation_bytes import BYTES, MASTER, find_gathered_width
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.lora_settings import LoRA, is_of_head, is_router, list_matrices
from trainrig.models.architecture.shapes import count, list_named_sizes
from trainrig.optim import Optimizer
from trainrig.optim.named_groups import NamedGroup, assign
from trainrig.parallel.layout import needs_sharding
from trainrig.parallel.precision import Precision
from trainrig.parallel.recompute import Offload
from trainrig.train.run_file.training_settings import Training


@dataclass(frozen=True)
class ModelRole:
    """Treatment of one of a run's models: which parameters are trained, and by what."""

    optimizer: Optimizer | None  # None: the model is frozen
    groups: tuple[NamedGroup, ...] = ()
    lora: LoRA | None = None  # adapters that are trained instead of the model's weights

    @classmethod
    def of(cls, training: Training, lora: LoRA | None = None) -> Self:
        """Return the role of the model that `training` trains.

        Adapters have no parameter groups.
        """
        return cls(training.optimizer, () if lora else training.groups, lora)


@dataclass(frozen=True)
class HeldParameter:
    """One parameter, or the part of it that a device computes with."""

    name: str
    numbers: int
    trained: int  # number of trained elements
    held: int  # bytes as stored
    gathered: int  # bytes as computed with
    cast: int  # bytes that a single rank without FSDP casts (parallel/gradients)
    optimizer: int  # bytes of optimizer state


@dataclass(frozen=True)
class EndParts:
    """Numbers of parameters outside the layers, by the units that FSDP gathers."""

    rest: int  # all not gathered separately: the last norm, tied tables, small heads
    embedding: int = 0
    head: int = 0

    @property
    def counts(self) -> tuple[int, int, int]:
        """The numbers of all parts."""
        return self.rest, self.embedding, self.head

    @property
    def after_layers(self) -> int:
        """The parameters that are gathered after a pass through the layers."""
        return self.rest + self.head


@dataclass(frozen=True)
class GatheredBytes:
    """Bytes of a model as it is computed with, where formats differ between parameters."""

    whole: float
    root: float  # gathered outside the layers, after a pass through them
    layer: float  # bytes of the largest layer

    def __add__(self, other: "GatheredBytes") -> "GatheredBytes":
        """Return the bytes of two models that are gathered at the same time."""
        layer = max(self.layer, other.layer)
        return GatheredBytes(self.whole + other.whole, self.root + other.root, layer)


def list_held(
    model: DecoderConfig,
    sizes: Iterable[tuple[str, tuple[int, ...]]],
    role: ModelRole,
    precision: Precision,
) -> Iterator[HeldParameter]:
    """Yield the parameters of `sizes`, each followed by its adapters.

    `sizes` has parameters of `model` by name, whole or as the part on one device.
    """
    if role.lora is not None:
        yield from _list_adapted(model, sizes, role, role.lora, precision)
        return
    named = list(sizes)
    assigned = assign((name for name, _ in named), role.groups)
    for name, size in named:
        numbers = math.prod(size)
        group = assigned.get(name)
        chosen = group.optimizer if group and group.optimizer else role.optimizer
        kept = None
        if chosen is not None and not (group and group.freeze):
            kept = chosen.count_state_bytes(name, size)
        trained = 0 if kept is None else numbers
        held = MASTER * numbers
        narrow = precision.bytes * numbers
        yield HeldParameter(name, numbers, trained, held, narrow, narrow, kept or 0)


def _list_adapted(
    model: DecoderConfig,
    sizes: Iterable[tuple[str, tuple[int, ...]]],
    role: ModelRole,
    lora: LoRA,
    precision: Precision,
) -> Iterator[HeldParameter]:
    matrices = set(list_matrices(model))
    chosen = set(lora.choose(model))

    def train(name: str, size: tuple[int, ...]) -> HeldParameter:
        assert role.optimizer is not None, "only trained models have adapters"
        numbers = math.prod(size)
        kept = role.optimizer.count_state_bytes(name, size)
        gathered = precision.bytes * numbers
        return HeldParameter(name, numbers, numbers, MASTER * numbers, gathered, gathered, kept)

    for name, size in sizes:
        layer = name.removesuffix(".weight")
        if is_of_head(model, name):
            yield train(name, size)
            continue
        numbers = math.prod(size)
        base = lora.base
        if layer not in matrices or layer == name or is_router(layer):
            base = "float32"
        elif base == "int8" and layer.endswith("embedding"):  # a table
            base = "bfloat16"
        scales = size[0] if base == "int8" else 0
        width = find_gathered_width(base, precision)
        cast = width if width != BYTES[base] else 0
        yield HeldParameter(
            name,
            numbers=numbers + scales,
            trained=0,
            held=BYTES[base] * numbers + MASTER * scales,
            gathered=width * numbers + precision.bytes * scales,
            cast=cast * numbers + precision.bytes * scales,
            optimizer=0,
        )
        if layer in chosen and layer != name:
            yield train(f"{layer}.lora_a", (lora.rank, size[1]))
            yield train(f"{layer}.lora_b", (size[0], lora.rank))
            if lora.dora:
                yield train(f"{layer}.magnitude", (size[0],))


SLOTS = 2  # number of slots in optim/optimizer_offload.py, which imports torch


def resolve_offload(training: Training, on_cpu: bool) -> Training:
    """Return `training` without offloading if it runs on CPUs, whose memory is the host's."""
    return training.model_copy(update={"offload": Offload()}) if on_cpu else training


@dataclass(frozen=True)
class UpdateState:
    """Optimizer state on the device while parameters are updated one after another.

    The rest of the state is in the host's memory.
    """

    # Bytes of optimizer state of each parameter, and of each stack of experts.
    kept: tuple[int, ...]
    experts: tuple[int, ...]
    whole: bool  # whole matrices are updated, as many at once as there are slices

    @classmethod
    def of(
        cls, held: Iterable[HeldParameter], role: ModelRole, experts: str = "\0"
    ) -> "UpdateState":
        """Return the optimizer state of the `held` parameters of a model with the given `role`.

        `experts` is a part of the names of stacks that are sharded over fewer devices than the
        rest.
        """
        optimizers = [role.optimizer, *(group.optimizer for group in role.groups)]
        found = list(held)
        return cls(
            kept=tuple(parameter.optimizer for parameter in found if experts not in parameter.name),
            experts=tuple(parameter.optimizer for parameter in found if experts in parameter.name),
            whole=any(chosen and not chosen.elementwise for chosen in optimizers),
        )

    def estimate_bytes(self, over: int, fewer: int) -> float:
        """Return the most bytes on a device during an update.

        Parameters are sharded over `over` devices, stacks of experts over `fewer`.
        """
        many = SLOTS * (over if self.whole else 1)
        slices = [size / over for size in self.kept] + [size / fewer for size in self.experts]
        return sum(heapq.nlargest(many, slices))


@dataclass(frozen=True)
class HeldParameters:
    """Parameters that one device works with: their numbers, and the bytes of its slices."""

    total: int  # number of parameters, which are gathered to compute with
    trained: int
    ends: EndParts
    layer: int  # number of parameters of the largest layer
    layers: int
    weights: float  # bytes of this device's slices
    optimizer: float  # bytes of optimizer state
    gradients: float  # bytes of this device's slices
    sharded: bool  # FSDP gathers the parameters (parallel/layout.py)
    # None: all are gathered in the dtype that is computed in. If it is set, `ends` and `layer`
    # count only trained parameters.
    gathered: GatheredBytes | None = None

    def count_gathered(self, compute: int) -> GatheredBytes:
        """Return the bytes of the parameters as computed with.

        `compute` is the bytes of a number.
        """
        if self.gathered is not None:
            return self.gathered
        root = compute * self.ends.after_layers
        return GatheredBytes(compute * self.total, root, compute * self.layer)

    def hold_beside(self, other: "HeldParameters", compute: int) -> "HeldParameters":
        """Return the parameters of this model and of `other`, which are held at the same time.

        Gradients of both are sent unit by unit.
        """
        return HeldParameters(
            total=self.total + other.total,
            trained=self.trained + other.trained,
            ends=max(self.ends, other.ends, key=lambda ends: max(ends.counts))
            if other.trained
            else self.ends,
            layer=max(self.layer, other.layer) if other.trained else self.layer,
            layers=self.layers + (other.layers if other.trained else 0),
            weights=self.weights + other.weights,
            optimizer=self.optimizer + other.optimizer,
            gradients=self.gradients + other.gradients,
            sharded=self.sharded,
            gathered=self.count_gathered(compute) + other.count_gathered(compute),
        )


def hold_model(
    model: DecoderConfig, training: Training, workers: int, role: ModelRole
) -> HeldParameters:
    """Return what each of `workers` holds of a model whose layers and experts are not divided."""
    held = list(list_held(model, list_named_sizes(model.shapes), role, training.precision))
    sliced = training.parallel.count_slices(workers)
    trained = sum(parameter.trained for parameter in held)
    optimizer = sum(parameter.optimizer for parameter in held) / sliced
    if training.offload.optimizer:
        optimizer = UpdateState.of(held, role).estimate_bytes(sliced, sliced)
    ends, layer = _count_unit_parameters(model)
    sharded = needs_sharding(workers, training.precision, training.parallel.reshard)
    gathered = None
    if role.lora is not None or role.optimizer is None:
        units = Counter[str]()
        of_trained = Counter[str]()
        for parameter in held:
            unit = name_unit(parameter.name, model.shapes.ends_apart)
            units[unit] += parameter.gathered if sharded else parameter.cast
            of_trained[unit] += parameter.trained
        of_ends = EndParts(*(units.pop(name, 0) for name in ("", "embedding", "head")))
        ends = EndParts(*(of_trained.pop(name, 0) for name in ("", "embedding", "head")))
        layer = max(of_trained.values())
        whole = sum(of_ends.counts) + sum(units.values())
        gathered = GatheredBytes(whole, of_ends.after_layers, max(units.values()))
    return HeldParameters(
        total=sum(parameter.numbers for parameter in held),
        trained=trained,
        ends=ends,
        layer=layer,
        layers=model.layers,
        weights=sum(parameter.held for parameter in held) / sliced,
        optimizer=optimizer,
        gradients=MASTER * trained / sliced,
        sharded=sharded,
        gathered=gathered,
    )


def name_unit(parameter: str, ends_apart: Sequence[str]) -> str:
    """Return the FSDP unit of the parameter: a layer, or one of `ends_apart`.

    "" if it is gathered with the rest.
    """
    kind, _, rest = parameter.partition("layers.")
    end = parameter.partition(".")[0]
    return f"{kind}{rest.partition('.')[0]}" if rest else end if end in ends_apart else ""


def _count_unit_parameters(model: DecoderConfig) -> tuple[EndParts, int]:
    """Return the parameters gathered outside the layers, and the size of the largest layer."""
    shapes = model.shapes
    beside = sum(count(other) - count(other.layers) for other in shapes.beside if other)
    ends = count((shapes.before_layers, shapes.norm, shapes.after_layers)) + beside
    apart = {name: count(getattr(shapes, name)) for name in shapes.ends_apart}
    largest = max(count(layer) for layer in set(shapes.layers))
    return EndParts(ends - sum(apart.values()), **apart), largest


NOT_GATHERED = GatheredBytes(0.0, 0.0, 0.0)


@dataclass(frozen=True)
class ModelBeside:
    """A model of a run other than the tuned one."""

    model: DecoderConfig
    optimizer: Optimizer | None = None  # None: the model is frozen
    in_steps: bool = True  # steps read the model; if false, only the making of batches does


def hold_beside(beside: ModelBeside, training: Training, workers: int) -> HeldParameters:
    """Return what each of `workers` holds of the model during a step."""
    parallel = training.parallel
    # A tensor group does not divide the layers of these models.
    role = ModelRole(beside.optimizer)
    held = hold_model(beside.model, training, workers // parallel.tensor_ranks, role)
    if not beside.in_steps:
        return replace(held, gathered=NOT_GATHERED)
    gathered = held.count_gathered(training.precision.bytes)
    whole = gathered.whole / parallel.pipeline_ranks
    return replace(held, gathered=replace(gathered, whole=whole))
