"""The sizes of every parameter of a model, declared once.

A tree of plain records under the very names of the modules: each module builds its parameters from
its record, and what a model has, computes and takes is counted from the same records.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Protocol

Size = tuple[int, ...]


class Leaf(Protocol):
    """A record of parameters by their names; "" is a parameter that has no module of its own."""

    def sizes(self) -> dict[str, Size]:
        """Sizes by name."""
        ...


@dataclass(frozen=True)
class ProjectionShape:
    """A matrix, and a vector that is added if `bias`."""

    inputs: int
    outputs: int
    bias: bool = False

    def sizes(self) -> dict[str, Size]:
        """See Leaf."""
        vector: dict[str, Size] = {"bias": (self.outputs,)} if self.bias else {}
        return {"weight": (self.outputs, self.inputs)} | vector


@dataclass(frozen=True)
class NormShape:
    """A gain, and a vector that is added if `bias`."""

    channels: int
    bias: bool = False

    def sizes(self) -> dict[str, Size]:
        """See Leaf."""
        vector: dict[str, Size] = {"bias": (self.channels,)} if self.bias else {}
        return {"weight": (self.channels,)} | vector


@dataclass(frozen=True)
class TableShape:
    """A vector for each of `entries`."""

    entries: int
    channels: int

    def sizes(self) -> dict[str, Size]:
        """See Leaf."""
        return {"weight": (self.entries, self.channels)}


@dataclass(frozen=True)
class VectorShape:
    """A vector."""

    channels: int

    def sizes(self) -> dict[str, Size]:
        """See Leaf."""
        return {"": (self.channels,)}


@dataclass(frozen=True)
class StackShape:
    """A matrix for each of `experts`, of which a token meets `active`."""

    experts: int
    active: int
    inputs: int
    outputs: int

    def sizes(self) -> dict[str, Size]:
        """See Leaf."""
        return {"": (self.experts, self.outputs, self.inputs)}


@dataclass(frozen=True)
class AttentionShape:
    """Of one layer; None: it has no such part. Another kind of attention than the plain one adds
    fields of its own."""

    query: ProjectionShape
    key: ProjectionShape
    value: ProjectionShape
    output: ProjectionShape
    query_norm: NormShape | None
    key_norm: NormShape | None
    sinks: VectorShape | None

    @property
    def added(self) -> dict[str, ProjectionShape | NormShape | VectorShape]:
        """The parts that the plain kind of attention lacks, by name."""
        names = _names(self)[len(fields(AttentionShape)) :]
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class FeedForwardShape:
    """Of one layer; `gate` is None where nothing is gated."""

    gate: ProjectionShape | None
    up: ProjectionShape
    down: ProjectionShape


@dataclass(frozen=True)
class ExpertsShape:
    """All experts of one layer; `gate` is None where nothing is gated."""

    gate: StackShape | None
    up: StackShape
    down: StackShape


@dataclass(frozen=True)
class MixtureShape:
    """Of one layer: router, experts, and the network that every token goes through beside."""

    router: ProjectionShape
    balance_bias: VectorShape | None
    experts: ExpertsShape
    shared: FeedForwardShape | None


@dataclass(frozen=True)
class LayerShape:
    """A layer. Norms of its parts' inputs (with PostNorm, of the stream after them) and outputs."""

    attention_norm: NormShape | None
    attention: AttentionShape
    attention_output_norm: NormShape | None
    feedforward_norm: NormShape | None
    feedforward: FeedForwardShape | MixtureShape
    feedforward_output_norm: NormShape | None


@dataclass(frozen=True)
class CrossLayerShape(LayerShape):
    """A layer that also looks at another text."""

    cross_norm: NormShape
    cross_attention: AttentionShape


@dataclass(frozen=True)
class DecoderShapes:
    """A whole decoder; a tied head has no parameters of its own. Each of `further_layers` stands
    between `layers` and the norm, for one more token ahead."""

    embedding: TableShape
    position_embedding: TableShape | None
    layers: tuple[LayerShape, ...]
    norm: NormShape | None
    head: ProjectionShape | None
    further_layers: tuple[LayerShape, ...]

    @property
    def before_layers(self) -> tuple[object, ...]:
        """What makes of ids what the first layer reads."""
        return (self.embedding, self.position_embedding)

    @property
    def after_layers(self) -> tuple[object, ...]:
        """What makes logits of what `norm` gives."""
        return (self.head,)

    @property
    def beside(self) -> "tuple[DecoderShapes | None, ...]":
        """What else is trained with it."""
        return ()

    @property
    def ends_apart(self) -> tuple[str, ...]:
        """Names of the embedding and the head of tokens where a pass reads each in one place alone,
        so that FSDP gathers them by themselves: not where they are one, or the head is small."""
        small = self.head is None or self.head.outputs != self.embedding.entries
        return () if small else ("embedding", "head")


@dataclass(frozen=True)
class TransformShape:
    """What each place goes through before its logits: a product and, if it has one, a norm."""

    dense: ProjectionShape
    norm: NormShape | None


@dataclass(frozen=True)
class EncoderShapes(DecoderShapes):
    """A whole encoder. `head_bias` is added to the logits of a tied head; the first place goes
    through the `pooler` before a text's classes are told. What is embedded goes through
    `embedding_projection` where it is of another width than the layers. The `generator` has its
    tables from this encoder."""

    segment_embedding: TableShape | None
    embedding_norm: NormShape | None
    embedding_projection: ProjectionShape | None
    transform: TransformShape | None
    pooler: ProjectionShape | None
    head_bias: VectorShape | None
    generator: "EncoderShapes | None"

    @property
    def before_layers(self) -> tuple[object, ...]:
        """See DecoderShapes."""
        own = (self.segment_embedding, self.embedding_norm, self.embedding_projection)
        return (*super().before_layers, *own)

    @property
    def after_layers(self) -> tuple[object, ...]:
        """See DecoderShapes."""
        return (self.transform, self.pooler, *super().after_layers, self.head_bias)

    @property
    def beside(self) -> tuple[DecoderShapes | None, ...]:
        """See DecoderShapes."""
        return (self.generator,)

    @property
    def ends_apart(self) -> tuple[str, ...]:
        """See DecoderShapes: a generator reads the embedding too, and most tie their heads."""
        return ()


@dataclass(frozen=True)
class EncoderDecoderShapes(DecoderShapes):
    """A whole encoder-decoder: `layers` are the encoder's, then the decoder's. Biases are tables of
    a number for each head and bucket of distances."""

    encoder_bias: TableShape
    decoder_bias: TableShape
    encoder_norm: NormShape

    @property
    def before_layers(self) -> tuple[object, ...]:
        """See DecoderShapes."""
        return (
            *super().before_layers,
            self.encoder_bias,
            self.decoder_bias,
            self.encoder_norm,
        )

    @property
    def ends_apart(self) -> tuple[str, ...]:
        """See DecoderShapes: encoder and decoder read one embedding."""
        return ()


def list_named_sizes(part: object, prefix: str = "") -> Iterator[tuple[str, Size]]:
    """Dotted names and sizes of the parameters of `part`, in the order of its fields."""
    if part is None:
        return
    if isinstance(part, tuple):
        for index, each in enumerate(part):
            yield from list_named_sizes(each, f"{prefix}{index}.")
    elif hasattr(part, "sizes"):
        for name, size in part.sizes().items():
            yield f"{prefix}{name}".removesuffix("."), size
    else:
        for name in _names(part):
            yield from list_named_sizes(getattr(part, name), f"{prefix}{name}.")


def count(part: object) -> int:
    """How many parameters `part` has."""
    total = 0
    for _, size in list_named_sizes(part):
        numbers = 1
        for length in size:
            numbers *= length
        total += numbers
    return total


def multiplications(part: object) -> int:
    """How many products of two numbers the matrices of `part` make of one token."""
    if isinstance(part, ProjectionShape):
        return part.inputs * part.outputs
    if isinstance(part, StackShape):
        return part.active * part.inputs * part.outputs
    if part is None or hasattr(part, "sizes"):
        return 0
    inner = part if isinstance(part, tuple) else [getattr(part, each) for each in _names(part)]
    return sum(map(multiplications, inner))


def count_idle(part: object) -> int:
    """How many parameters of `part` a token does not meet: those of experts not chosen for it."""
    if isinstance(part, StackShape):
        return (part.experts - part.active) * part.inputs * part.outputs
    if part is None or hasattr(part, "sizes"):
        return 0
    inner = part if isinstance(part, tuple) else [getattr(part, each) for each in _names(part)]
    return sum(map(count_idle, inner))


def _names(part: object) -> tuple[str, ...]:
    return tuple(field.name for field in fields(part))  # type: ignore[arg-type]
