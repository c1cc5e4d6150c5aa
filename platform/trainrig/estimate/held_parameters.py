"""The parameters that a device holds of a model, by what training does with it.

A model is trained whole, but for frozen groups; or by adapters beside frozen weights, in the number
format that `lora.base` says (models/lora/layers.py: int8 has a float32 scale for each row, of
tables no int8 is made; norms, biases, experts and routers stay in float32); or is frozen.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Self

from trainrig.estimate.activations import BYTES, MASTER, find_gathered_width
from trainrig.models.decoder_config import DecoderConfig
from trainrig.models.lora.settings import LoRA, is_of_head, is_router, list_matrices
from trainrig.optim import Optimizer
from trainrig.optim.named_groups import NamedGroup, assign
from trainrig.parallel.precision import Precision
from trainrig.train.run_file.training import Training


@dataclass(frozen=True)
class ModelRole:
    """What a run does with one of its models."""

    optimizer: Optimizer | None  # None: it is frozen
    groups: tuple[NamedGroup, ...] = ()
    lora: LoRA | None = None  # what is trained instead of its own weights

    @classmethod
    def of(cls, training: Training, lora: LoRA | None = None) -> Self:
        """That of the model that `training` is of; adapters have no groups."""
        return cls(training.optimizer, () if lora else training.groups, lora)


@dataclass(frozen=True)
class HeldParameter:
    """One parameter, or the part of it that a device computes with."""

    name: str
    numbers: int
    trained: int  # of these
    held: int  # bytes
    gathered: int  # bytes, as it is computed with
    cast: int  # of these, what a rank alone that casts makes of it; see parallel/gradients
    optimizer: int  # bytes of what its optimizer keeps


@dataclass(frozen=True)
class EndParts:
    """Parameters of a model beside its layers, by what FSDP gathers together."""

    rest: int  # the last norm, say, and of ends that are one or small all
    embedding: int = 0
    head: int = 0

    @property
    def each(self) -> tuple[int, int, int]:
        """The numbers of the parts."""
        return self.rest, self.embedding, self.head

    @property
    def after_layers(self) -> int:
        """Of what is gathered once a pass is through the layers."""
        return self.rest + self.head


@dataclass(frozen=True)
class GatheredBytes:
    """Bytes of a model as it is computed with, where that differs from number to number."""

    whole: float
    root: float  # of what is gathered beside the layers once all of them have been passed
    layer: float  # of the largest layer

    def __add__(self, other: "GatheredBytes") -> "GatheredBytes":
        """Of two models that are gathered beside each other."""
        layer = max(self.layer, other.layer)
        return GatheredBytes(self.whole + other.whole, self.root + other.root, layer)


def list_held(
    model: DecoderConfig,
    sizes: Iterable[tuple[str, tuple[int, ...]]],
    role: ModelRole,
    precision: Precision,
) -> Iterator[HeldParameter]:
    """The parameters of `sizes`, by name the whole ones of `model` or a device's parts of them,
    each followed by what adapters add to it."""
    if role.lora is not None:
        yield from _list_adapted(model, sizes, role, role.lora, precision)
        return
    named = list(sizes)
    assigned = assign((name for name, _ in named), role.groups)
    for name, size in named:
        numbers, group = math.prod(size), assigned.get(name)
        chosen = group.optimizer if group and group.optimizer else role.optimizer
        kept = None
        if chosen is not None and not (group and group.freeze):
            kept = chosen.count_state_bytes(name, size)
        trained, held = 0 if kept is None else numbers, MASTER * numbers
        narrow = precision.bytes * numbers
        yield HeldParameter(name, numbers, trained, held, narrow, narrow, kept or 0)


def _list_adapted(
    model: DecoderConfig,
    sizes: Iterable[tuple[str, tuple[int, ...]]],
    role: ModelRole,
    lora: LoRA,
    precision: Precision,
) -> Iterator[HeldParameter]:
    matrices, chosen = set(list_matrices(model)), set(lora.choose(model))

    def train(name: str, size: tuple[int, ...]) -> HeldParameter:
        assert role.optimizer is not None, "adapters are there to be trained"
        numbers, kept = math.prod(size), role.optimizer.count_state_bytes(name, size)
        gathered = precision.bytes * numbers
        return HeldParameter(name, numbers, numbers, MASTER * numbers, gathered, gathered, kept)

    for name, size in sizes:
        layer = name.removesuffix(".weight")
        if is_of_head(model, name):
            yield train(name, size)
            continue
        numbers, base = math.prod(size), lora.base
        if layer not in matrices or layer == name or is_router(layer):
            base = "float32"
        elif base == "int8" and is_table(layer):
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


def is_table(layer: str) -> bool:
    """Whether the layer of that name looks its rows up."""
    return layer.endswith("embedding")
