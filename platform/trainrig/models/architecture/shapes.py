"""Shapes of all parameters of a model, declared in one place.

A tree of records with the same names as the modules. Each module builds its parameters from its
record, and parameters, operations and memory are counted from the same records.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields

Size = tuple[int, ...]


@dataclass(frozen=True)
class ProjectionShape:
    """Shape of a linear layer, with a bias if `bias`."""

    inputs: int
    outputs: int
    bias: bool = False

    def sizes(self) -> dict[str, Size]:
        """Return the size of each parameter by name."""
        vector: dict[str, Size] = {"bias": (self.outputs,)} if self.bias else {}
        return {"weight": (self.outputs, self.inputs)} | vector


@dataclass(frozen=True)
class NormShape:
    """Shape of a norm: a gain, and a bias if `bias`."""

    channels: int
    bias: bool = False

    def sizes(self) -> dict[str, Size]:
        """Return the size of each parameter by name."""
        vector: dict[str, Size] = {"bias": (self.channels,)} if self.bias else {}
        return {"weight": (self.channels,)} | vector


@dataclass(frozen=True)
class TableShape:
    """Shape of an embedding table: a vector for each of `entries`."""

    entries: int
    channels: int

    def sizes(self) -> dict[str, Size]:
        """Return the size of each parameter by name."""
        return {"weight": (self.entries, self.channels)}


@dataclass(frozen=True)
class VectorShape:
    """Shape of a single vector."""

    channels: int

    def sizes(self) -> dict[str, Size]:
        """Return the size of each parameter by name."""
        return {"": (self.channels,)}


@dataclass(frozen=True)
class StackShape:
    """Shape of stacked matrices, one for each of `experts`, of which a token uses `active`."""

    experts: int
    active: int
    inputs: int
    outputs: int

    def sizes(self) -> dict[str, Size]:
        """Return the size of each parameter by name."""
        return {"": (self.experts, self.outputs, self.inputs)}


@dataclass(frozen=True)
class StackedVectorShape:
    """Shape of stacked vectors, one for each of `experts`, of which a token uses `active`."""

    experts: int
    active: int
    channels: int

    def sizes(self) -> dict[str, Size]:
        """Return the size of each parameter by name."""
        return {"": (self.experts, self.channels)}


@dataclass(frozen=True)
class AttentionShape:
    """Shapes of one layer's attention; None for a part that it lacks.

    Kinds of attention other than the plain one add fields.
    """

    query: ProjectionShape
    key: ProjectionShape
    value: ProjectionShape
    output: ProjectionShape
    query_norm: NormShape | None
    key_norm: NormShape | None
    sinks: VectorShape | None

    @property
    def added(self) -> dict[str, ProjectionShape | NormShape | VectorShape | None]:
        """The parts that a kind of attention adds to the plain kind, by name."""
        names = _names(self)[len(fields(AttentionShape)) :]
        return {name: getattr(self, name) for name in names}

    @property
    def kept_beside(self) -> int:
        """Numbers per token that the added parts keep for the backward pass.

        The outputs of added projections are not counted.
        """
        return 0


@dataclass(frozen=True)
class FeedForwardShape:
    """Shapes of one layer's dense feed-forward network; `gate` is None without a gate."""

    gate: ProjectionShape | None
    up: ProjectionShape
    down: ProjectionShape


@dataclass(frozen=True)
class ExpertsShape:
    """Shapes of all experts of one layer; None for a gate or biases that they lack."""

    gate: StackShape | None
    up: StackShape
    down: StackShape
    gate_bias: StackedVectorShape | None = None
    up_bias: StackedVectorShape | None = None
    down_bias: StackedVectorShape | None = None


@dataclass(frozen=True)
class MixtureShape:
    """Shapes of one layer's router, experts and shared network, with its gate."""

    router: ProjectionShape
    balance_bias: VectorShape | None
    experts: ExpertsShape
    shared: FeedForwardShape | None
    shared_gate: ProjectionShape | None = None


@dataclass(frozen=True)
class LayerShape:
    """Shapes of one layer.

    `attention_norm` and `feedforward_norm` are applied to the input of their part, or with PostNorm
    to the residual stream after it. The output norms are applied to the output of their part.
    """

    attention_norm: NormShape | None
    attention: AttentionShape
    attention_output_norm: NormShape | None
    feedforward_norm: NormShape | None
    feedforward: FeedForwardShape | MixtureShape
    feedforward_output_norm: NormShape | None


@dataclass(frozen=True)
class CrossLayerShape(LayerShape):
    """Shapes of a layer that also attends to the encoder's output."""

    cross_norm: NormShape
    cross_attention: AttentionShape


@dataclass(frozen=True)
class DecoderShapes:
    """Shapes of a whole decoder; `head` is None if it is tied to the embedding.

    Each of `further_layers` is applied between `layers` and `norm`, for one more token ahead.
    """

    embedding: TableShape
    position_embedding: TableShape | None
    layers: tuple[LayerShape, ...]
    norm: NormShape | None
    head: ProjectionShape | None
    further_layers: tuple[LayerShape, ...]

    @property
    def before_layers(self) -> tuple[object, ...]:
        """The parts that compute the first layer's input from token ids."""
        return (self.embedding, self.position_embedding)

    @property
    def after_layers(self) -> tuple[object, ...]:
        """The parts that compute logits from the output of `norm`."""
        return (self.head,)

    @property
    def beside(self) -> "tuple[DecoderShapes | None, ...]":
        """The shapes of other models that are trained with this one."""
        return ()

    @property
    def ends_apart(self) -> tuple[str, ...]:
        """Names of the embedding and the head if FSDP gathers each of them separately.

        That is so where a forward pass reads each in one place only: not where they are tied, and
        not for a small head.
        """
        small = self.head is None or self.head.outputs != self.embedding.entries
        return () if small else ("embedding", "head")


@dataclass(frozen=True)
class TransformShape:
    """Shapes of the layer before an encoder's head: a linear layer and perhaps a norm."""

    dense: ProjectionShape
    norm: NormShape | None


@dataclass(frozen=True)
class EncoderShapes(DecoderShapes):
    """Shapes of a whole encoder.

    `head_bias` is added to the logits of a tied head. The `pooler` is applied to the first position
    before classes are predicted. `embedding_projection` leads from the width of the embedding to
    that of the layers. The `generator` shares the embedding tables of this encoder.
    """

    segment_embedding: TableShape | None
    embedding_norm: NormShape | None
    embedding_projection: ProjectionShape | None
    transform: TransformShape | None
    pooler: ProjectionShape | None
    head_bias: VectorShape | None
    generator: "EncoderShapes | None"

    @property
    def before_layers(self) -> tuple[object, ...]:
        """The parts that compute the first layer's input from token ids."""
        own = (self.segment_embedding, self.embedding_norm, self.embedding_projection)
        return (*super().before_layers, *own)

    @property
    def after_layers(self) -> tuple[object, ...]:
        """The parts that compute logits from the output of `norm`."""
        return (self.transform, self.pooler, *super().after_layers, self.head_bias)

    @property
    def beside(self) -> tuple[DecoderShapes | None, ...]:
        """The shapes of the generator, if there is one."""
        return (self.generator,)

    @property
    def ends_apart(self) -> tuple[str, ...]:
        """No names: a generator reads the embedding, too, and most heads are tied."""
        return ()


@dataclass(frozen=True)
class EncoderDecoderShapes(DecoderShapes):
    """Shapes of a whole encoder-decoder; `layers` has the encoder's layers, then the decoder's.

    `encoder_bias` and `decoder_bias` have a value for each bucket of distances and each head.
    """

    encoder_bias: TableShape
    decoder_bias: TableShape
    encoder_norm: NormShape

    @property
    def before_layers(self) -> tuple[object, ...]:
        """The parts that both stacks of layers use besides `layers`."""
        return (
            *super().before_layers,
            self.encoder_bias,
            self.decoder_bias,
            self.encoder_norm,
        )

    @property
    def ends_apart(self) -> tuple[str, ...]:
        """No names: encoder and decoder share one embedding."""
        return ()


def list_named_sizes(part: object, prefix: str = "") -> Iterator[tuple[str, Size]]:
    """Yield the dotted name and size of each parameter of `part`, in the order of its fields."""
    if part is None:
        return
    if isinstance(part, tuple):
        for index, member in enumerate(part):
            yield from list_named_sizes(member, f"{prefix}{index}.")
    elif hasattr(part, "sizes"):
        for name, size in part.sizes().items():
            yield f"{prefix}{name}".removesuffix("."), size
    else:
        for name in _names(part):
            yield from list_named_sizes(getattr(part, name), f"{prefix}{name}.")


def count(part: object) -> int:
    """Return the number of parameters of `part`."""
    total = 0
    for _, size in list_named_sizes(part):
        numbers = 1
        for length in size:
            numbers *= length
        total += numbers
    return total


def count_multiplications(part: object) -> int:
    """Return the number of multiplications that the matrices of `part` make for one token."""
    if isinstance(part, ProjectionShape):
        return part.inputs * part.outputs
    if isinstance(part, StackShape):
        return part.active * part.inputs * part.outputs
    if isinstance(part, StackedVectorShape):  # added as a product with ones
        return part.active * part.channels
    if part is None or hasattr(part, "sizes"):
        return 0
    inner = part if isinstance(part, tuple) else [getattr(part, name) for name in _names(part)]
    return sum(map(count_multiplications, inner))


def count_idle(part: object) -> int:
    """Return the number of parameters of experts in `part` that are not chosen for a token."""
    if isinstance(part, StackShape):
        return (part.experts - part.active) * part.inputs * part.outputs
    if isinstance(part, StackedVectorShape):
        return (part.experts - part.active) * part.channels
    if part is None or hasattr(part, "sizes"):
        return 0
    inner = part if isinstance(part, tuple) else [getattr(part, name) for name in _names(part)]
    return sum(map(count_idle, inner))


def _names(part: object) -> tuple[str, ...]:
    return tuple(field.name for field in fields(part))  # type: ignore[arg-type]
