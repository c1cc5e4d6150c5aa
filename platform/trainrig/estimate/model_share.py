"""Part of a model that one device holds under tensor, expert and pipeline parallelism.

A tensor group divides heads, the hidden width of the feed-forward network, and the vocabulary; an
expert group divides the list of experts; a pipeline divides the list of layers. Norms and routers
are the same on all devices of a tensor group, which use them on parts of the sequence.
"""

import itertools
import operator
from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from typing import Self

from trainrig.estimate import held_parameters
from trainrig.estimate.activation_bytes import MASTER
from trainrig.estimate.held_parameters import EndParts
from trainrig.estimate.step_memory import Memory
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.shapes import DecoderShapes, count, list_named_sizes
from trainrig.parallel.layer_bytes import cut_shapes
from trainrig.train.run_file.training_settings import Training

_EXPERTS = ".experts."  # part of the names of parameters that an expert group divides
# Last parts of the names of parameters that a tensor group divides along another dim than the
# first.
_BY_COLUMNS = (
    ".attention.output.weight",
    ".attention.output.lora_a",
    ".down.weight",
    ".down.lora_a",
    *(f".experts.{name}" for name in ("gate", "up", "down")),
)


def _find_held_shapes(model: DecoderConfig, tensor: int, expert: int) -> DecoderShapes:
    """Return the shapes of all parameters that one device holds.

    The shapes are as `cut_shapes` gives them, except that keys and values are whole where there
    are fewer key heads than devices.
    """
    shapes = cut_shapes(model, tensor, expert)
    if model.shape.kv_heads % tensor == 0:
        return shapes
    layers = tuple(
        replace(
            mine,
            attention=replace(mine.attention, key=whole.attention.key, value=whole.attention.value),
        )
        for mine, whole in zip(shapes.layers, model.shapes.layers, strict=True)
    )
    return replace(shapes, layers=layers)


@dataclass(frozen=True)
class CountedParameters:
    """Numbers of parameters of some part of a model, and their bytes.

    Parameters that an expert group does not shard any further are counted separately as well.
    """

    total: int = 0
    trained: int = 0
    held: int = 0  # bytes as stored
    gathered: int = 0  # bytes as computed with
    optimizer: int = 0
    # Bytes, with optimizer state, of parameters of which a tensor group has columns.
    columns: int = 0
    experts: int = 0
    experts_trained: int = 0
    experts_held: int = 0
    experts_gathered: int = 0
    experts_optimizer: int = 0
    experts_columns: int = 0

    def __add__(self, other: "CountedParameters") -> "CountedParameters":
        return CountedParameters(*map(operator.add, astuple(self), astuple(other)))

    def __sub__(self, other: "CountedParameters") -> "CountedParameters":
        return CountedParameters(*map(operator.sub, astuple(self), astuple(other)))


@dataclass(frozen=True)
class Slices:
    """Bytes that one device keeps of its part, and the parameters of that part."""

    weights: float
    optimizer: float
    gradients: float
    # Bytes of the whole rows that a checkpoint needs of parameters held by columns.
    rows: float
    counted: CountedParameters

    @property
    def in_a_save(self) -> Memory:
        """The memory during a save or load of a checkpoint, whose files hold whole rows."""
        return Memory(self.weights, self.optimizer, passing=self.rows)


def slice_parameters(
    counted: CountedParameters,
    over: int,
    expert: int,
    tensor: int = 1,
    hosted: held_parameters.UpdateState | None = None,
) -> Slices:
    """Return the bytes of a part whose parameters are sharded over `over` devices.

    `expert` of the devices divide the experts, so that a slice of an expert is on fewer devices.
    Each device belongs to a tensor group of `tensor`. `hosted` is the optimizer state of the whole
    model if the host keeps it.
    """
    fewer = max(1, over // expert)

    def bytes_of(all_of: int, of_experts: int) -> float:
        return (all_of - of_experts) / over + of_experts / fewer

    # Devices that have columns of a row divide the gathered rows among them. Where experts are
    # divided as well, each device has all rows (parallel/axes/whole_parameters.py).
    gathered = counted.experts_columns * (tensor if expert > 1 else 1)
    optimizer = bytes_of(counted.optimizer, counted.experts_optimizer)
    if hosted is not None:
        optimizer = min(optimizer, hosted.estimate_bytes(over, fewer))
    return Slices(
        weights=bytes_of(counted.held, counted.experts_held),
        optimizer=optimizer,
        gradients=MASTER * bytes_of(counted.trained, counted.experts_trained),
        rows=(counted.columns - counted.experts_columns) / over + gathered / fewer,
        counted=counted,
    )


@dataclass(frozen=True)
class ModelParts:
    """Parameters of the pieces of a divided model: prefix sums over layers, and both ends."""

    layers: tuple[CountedParameters, ...]  # sums before each layer; the last is the sum of all
    before: CountedParameters  # the embedding and other parts before the layers
    after: CountedParameters  # the last norm and the head
    # The parts that are gathered separately (`ends_apart` in models/architecture/shapes.py).
    embedding_apart: CountedParameters
    head_apart: CountedParameters
    tied: CountedParameters  # the embedding, to add where a tied head is on another device
    layer: tuple[int, ...]  # number of parameters of each layer
    # Optimizer state of all pieces if the host keeps it; None: the device does.
    hosted: held_parameters.UpdateState | None

    @classmethod
    def of(
        cls,
        model: DecoderConfig,
        training: Training,
        tensor: int,
        expert: int,
        role: held_parameters.ModelRole | None = None,
    ) -> Self:
        """Return the parts of `model` as `training` trains it, or as `role` says."""
        shapes = _find_held_shapes(model, tensor, expert)
        by_layer = [CountedParameters()] * len(shapes.layers)
        before = after = embedding = head = CountedParameters()
        first = {
            name for name, _ in list_named_sizes(replace(shapes, layers=(), norm=None, head=None))
        }
        of_first = {name.removesuffix(".weight") for name in first}  # layers that may have adapters
        role = role or held_parameters.ModelRole.of(training)
        sizes = list_named_sizes(shapes)
        held = list(held_parameters.list_held(model, sizes, role, training.precision))
        hosted = (
            held_parameters.UpdateState.of(held, role, _EXPERTS)
            if training.offload.optimizer
            else None
        )
        for parameter in held:
            name = parameter.name
            found = _count_parameters(parameter, role, tensor > 1, hosted is not None)
            kind, _, rest = name.partition(".")
            if kind == "layers":
                by_layer[int(rest.partition(".")[0])] += found
            elif name in first or name.rpartition(".")[0] in of_first:
                before += found
                if kind == "embedding":
                    embedding += found
            else:
                after += found
                if kind == "head":
                    head += found
        sums = tuple(itertools.accumulate(by_layer, initial=CountedParameters()))
        tied = embedding if shapes.head is None else CountedParameters()
        layer_counts = tuple(count(layer) for layer in shapes.layers)
        apart = (embedding, head) if shapes.ends_apart else 2 * (CountedParameters(),)
        return cls(sums, before, after, *apart, tied, layer_counts, hosted)

    def count_with_ends(
        self, ranges: Sequence[range]
    ) -> tuple[CountedParameters, tuple[CountedParameters, ...]]:
        """Return the parameters of a device with the layers `ranges`, and those outside layers.

        The latter are in the order of the fields of `EndParts`.
        """
        total = rest = embedding = head = CountedParameters()
        last = len(self.layers) - 1
        for layers in ranges:
            total += self.layers[layers.stop] - self.layers[layers.start]
            if layers.start == 0:
                rest += self.before - self.embedding_apart
                embedding += self.embedding_apart
            if layers.stop == last:
                rest += self.after - self.head_apart
                head += self.head_apart
        apart = not any(layers.start == 0 for layers in ranges)
        if apart and any(layers.stop == last for layers in ranges):
            rest += self.tied
        return total + rest + embedding + head, (rest, embedding, head)

    def hold(
        self,
        ranges: Sequence[range],
        ends: Sequence[CountedParameters],
        mine: Slices,
        sharded: bool = True,
        adapted: bool = False,
    ) -> held_parameters.HeldParameters:
        """Return what a device with the layers `ranges` holds.

        `ends` are its parameters outside the layers, as `count_with_ends` returns them, and `mine`
        its slices. With `adapted`, adapters on frozen weights are trained.
        """
        numbers = [number for layers in ranges for number in layers]
        gathered = None
        layer = max(self.layer[number] for number in numbers)
        sent = EndParts(*(end.total for end in ends))
        if adapted:  # Frozen parameters are gathered as stored, and have no gradient to send.
            counts = [self.layers[number + 1] - self.layers[number] for number in numbers]
            root = EndParts(*(end.gathered for end in ends)).after_layers
            largest = max(count.gathered for count in counts)
            gathered = held_parameters.GatheredBytes(mine.counted.gathered, root, largest)
            sent = EndParts(*(end.trained for end in ends))
            layer = max(count.trained for count in counts)
        return held_parameters.HeldParameters(
            total=mine.counted.total,
            trained=mine.counted.trained,
            ends=sent,
            layer=layer,
            layers=len(numbers),
            weights=mine.weights,
            optimizer=mine.optimizer,
            gradients=mine.gradients,
            sharded=sharded,
            gathered=gathered,
        )


def _count_parameters(
    parameter: held_parameters.HeldParameter,
    role: held_parameters.ModelRole,
    shared: bool,
    hosted: bool,
) -> CountedParameters:
    """Return the counts of one parameter.

    With `shared`, devices of a tensor group hold parts of it. With `hosted`, its optimizer state is
    in the host's memory, also while whole rows are gathered.
    """
    # Only the adapters of an adapted model are saved, and nothing of a frozen one.
    saved = parameter.trained > 0 or (role.lora is None and role.optimizer is not None)
    by_columns = shared and saved and parameter.name.endswith(_BY_COLUMNS)
    columns = parameter.held + (0 if hosted else parameter.optimizer) if by_columns else 0
    found = (
        parameter.numbers,
        parameter.trained,
        parameter.held,
        parameter.gathered,
        parameter.optimizer,
        columns,
    )
    return (
        CountedParameters(*found, *found)
        if _EXPERTS in parameter.name
        else CountedParameters(*found)
    )
