"""The settings of a decoder, and what follows from them alone: no torch is needed to know it."""

import functools
import math
from dataclasses import dataclass
from typing import Any, Self

from pydantic import ValidationError

from trainrig.errors import ConfigError
from trainrig.models.architecture.attention import hides_by_distance
from trainrig.models.architecture.decoder_fields import DecoderFields, Head, round_up
from trainrig.models.architecture.feedforward import GATED, MixtureOfExperts, Network
from trainrig.models.architecture.norms import (
    LayerNorm,
    OutputNorm,
    ParallelBlock,
    PostNorm,
    SandwichNorm,
)
from trainrig.models.architecture.positions import Alibi, LearnedPositions
from trainrig.models.architecture.shapes import (
    AttentionShape,
    DecoderShapes,
    ExpertsShape,
    FeedForwardShape,
    LayerShape,
    MixtureShape,
    NormShape,
    ProjectionShape,
    StackShape,
    TableShape,
    VectorShape,
    count,
    count_idle,
    list_named_sizes,
)

# Matrix kernels work in tiles of up to 64 rows; a dim that does not fill its last one wastes it.
ALIGNMENT = 64


@dataclass(frozen=True)
class Shape:
    """The sizes of a decoder with nothing left to derive."""

    vocabulary: int
    layers: int
    channels: int
    heads: int
    kv_heads: int
    head_channels: int
    feedforward_channels: int


@dataclass(frozen=True)
class ParameterCount:
    """Parameters of a model by where they are. A tied head is the embedding: it counts 0."""

    embedding: int  # of tokens, and of positions and segments where they are learnt
    layers: int  # with the norm after the last of them
    head: int
    idle: int = 0  # of experts that are not chosen for a token; the others count them too
    generator: int = 0  # of a model that is trained with it and shares its embedding
    further_heads: int = 0  # of heads for the tokens after the next

    @property
    def active(self) -> int:
        """All that one token meets."""
        return self.total - self.idle

    @property
    def total(self) -> int:
        """All that an optimizer sees."""
        in_training = self.generator + self.further_heads
        return self.embedding + self.layers + self.head + in_training


class DecoderConfig(DecoderFields):
    """The settings of a decoder; a size that is left out follows from the others. Without any
    other, it is in the manner of Llama (Touvron et al. 2023, arXiv:2302.13971)."""

    @property
    def plain(self) -> Self:
        """The same without `mup`, its factors on the logits of attention and of the head written
        out: what it computes, whatever its weights began as and are moved by."""
        if self.mup is None:
            return self
        width = self.head_channels or self.channels // self.heads
        scale = self.mup.query_scale(self.attention.query_scale, width)
        multiplier = self.logit_multiplier
        if self.tie_embeddings:  # an own head has smaller weights instead
            multiplier /= self.mup.multiple(self.channels)
        attention = self.attention.model_copy(update={"query_scale": scale})
        update = {"mup": None, "attention": attention, "logit_multiplier": multiplier}
        return self.model_copy(update=update)

    @property
    def network(self) -> Network:
        """What a feed-forward network is, or an expert of it."""
        chosen = self.feedforward
        return chosen.network if isinstance(chosen, MixtureOfExperts) else chosen

    def for_tokenizer(self, entries: int) -> Self:
        """The same with its vocabulary settled for a tokenizer of `entries` ids.

        Raises ConfigError when the vocabulary set in the run file has fewer.
        """
        if self.vocabulary is None:
            return self.model_copy(update={"vocabulary": round_up(entries, ALIGNMENT)})
        if self.vocabulary < entries:
            raise ConfigError(
                f"model.vocabulary ({self.vocabulary}) is below the tokenizer's {entries} entries; "
                f"leave it out, or set {round_up(entries, ALIGNMENT)}"
            )
        return self

    def with_head(self, head: Head, labels: tuple[str, ...] = ()) -> Self:
        """The same with a head of another kind."""
        update: dict[str, Any] = {"head": head, "labels": labels}
        if not self.bidirectional:  # an encoder's setting is that of its logits of tokens alone
            update["biases"] = self.biases.model_copy(update={"head": False})
        return self.model_copy(update=update)

    def with_score_head(self) -> Self:
        """The same with one score of each place instead of logits."""
        return self.with_head("score")

    @property
    def description(self) -> str:
        """What a model is by its head, for errors."""
        return {
            "tokens": "a language model",
            "score": "a reward model",
            "classes": "a classifier",
            "spans": "a model that finds answers",
            "replaced": "a model that finds replaced tokens",
        }[self.head]

    @property
    def outputs(self) -> int:
        """Numbers that the head makes of a place, or of a text."""
        if self.head == "tokens":
            return self.shape.vocabulary
        return {"score": 1, "classes": len(self.labels), "spans": 2, "replaced": 1}[self.head]

    @property
    def logit_channels(self) -> int:
        """Width of what logits are made of."""
        return self.channels

    @property
    def generator_model(self) -> "DecoderConfig | None":
        """The model that is trained with this one and replaces tokens for it; None: there is
        none."""
        return None

    @property
    def without_generator(self) -> Self:
        """The same without what replaces tokens for it in training."""
        return self

    @property
    def without_further_heads(self) -> Self:
        """The same with the head of the next token alone."""
        return self.model_copy(update={"further_heads": 0}) if self.further_heads else self

    def with_further_heads(self, count: int) -> Self:
        """The same with `count` heads for the tokens after the next. Raises ValueError for a model
        that can have none."""
        try:
            return type(self).model_validate({**dict(self), "preset": None, "further_heads": count})
        except ValidationError as error:
            raise ValueError(error.errors()[0]["msg"].removeprefix("Value error, ")) from None

    def takes_mask(self, seen: int) -> bool:
        """Whether the kernel of some layer may take a mask of `seen` positions: what is done in
        blocks takes none."""
        attention, window = self.attention, self.attention.window
        if attention.logit_cap is not None or attention.sinks:
            return False
        if isinstance(self.position_embedding, Alibi):
            return False
        local = window is not None and all(map(window.is_local, range(self.layers)))
        size = None if window is None else window.size
        hides = hides_by_distance(size, seen, not self.bidirectional)
        return not local or not hides or self.further_heads > 0

    @property
    def shape(self) -> Shape:
        """Every size. Raises ConfigError while the vocabulary is not settled."""
        if self.vocabulary is None:
            raise ConfigError(
                "model.vocabulary is not set and no tokenizer has been named; set one of the two"
            )
        return Shape(
            vocabulary=self.vocabulary,
            layers=self.layers,
            channels=self.channels,
            heads=self.heads,
            kv_heads=self.kv_heads or self.heads,
            head_channels=self.head_channels or self.channels // self.heads,
            feedforward_channels=self.feedforward_channels or self._usual_width(),
        )

    @property
    def shapes(self) -> DecoderShapes:
        """The sizes of every parameter. Raises ConfigError while the vocabulary is not settled."""
        return _build_shapes(self)

    def _declare_shapes(self) -> DecoderShapes:
        shape = self.shape
        learnt = isinstance(self.position_embedding, LearnedPositions)
        return DecoderShapes(
            embedding=TableShape(shape.vocabulary, shape.channels),
            position_embedding=TableShape(self.positions, shape.channels) if learnt else None,
            layers=tuple(self._layer_shape(shape, index) for index in range(self.layers)),
            norm=None if isinstance(self.block, PostNorm) else self._norm_shape(shape.channels),
            head=self._head_shape(shape),
            further_layers=(self._layer_shape(shape, self.layers),) * self.further_heads,
        )

    def _head_shape(self, shape: Shape) -> ProjectionShape | None:
        if self.head != "tokens":
            return ProjectionShape(shape.channels, self.outputs, self.bidirectional)
        if self.tie_embeddings:
            return None
        return ProjectionShape(shape.channels, shape.vocabulary, self.biases.head)

    def _layer_shape(self, shape: Shape, index: int) -> LayerShape:
        norm, block = self._norm_shape(shape.channels), self.block
        before = None if isinstance(block, OutputNorm) else norm
        after = norm if isinstance(block, OutputNorm | SandwichNorm) else None
        shared = isinstance(block, ParallelBlock) and block.shared_norm
        return LayerShape(
            attention_norm=before,
            attention=self._attention_shape(shape),
            attention_output_norm=after,
            feedforward_norm=None if shared else before,
            feedforward=self._feedforward_shape(shape, index),
            feedforward_output_norm=after,
        )

    def _attention_shape(self, shape: Shape) -> AttentionShape:
        queries, keys = shape.heads * shape.head_channels, shape.kv_heads * shape.head_channels
        wide, normed = self.attention.qk_norm == "projection", self.attention.qk_norm is not None
        key_value = ProjectionShape(shape.channels, keys, self.biases.qkv)
        plain = AttentionShape(
            query=ProjectionShape(shape.channels, queries, self.biases.qkv),
            key=key_value,
            value=key_value,
            output=ProjectionShape(queries, shape.channels, self.biases.output),
            query_norm=self._norm_shape(queries if wide else shape.head_channels)
            if normed
            else None,
            key_norm=self._norm_shape(keys if wide else shape.head_channels) if normed else None,
            sinks=VectorShape(shape.heads) if self.attention.sinks else None,
        )
        return self.attention.add_parts(plain)

    def _feedforward_shape(self, shape: Shape, index: int) -> FeedForwardShape | MixtureShape:
        mixture = self.feedforward
        if not isinstance(mixture, MixtureOfExperts) or index < mixture.dense_layers:
            return self._dense_shape(shape.channels, shape.feedforward_channels)
        between = mixture.expert_channels or shape.feedforward_channels
        chosen = mixture.experts, mixture.active
        inner = StackShape(*chosen, shape.channels, between)
        shared = mixture.shared_experts * between
        return MixtureShape(
            router=ProjectionShape(shape.channels, mixture.experts),
            balance_bias=VectorShape(mixture.experts) if mixture.balance_bias else None,
            experts=ExpertsShape(
                gate=inner if isinstance(self.network, GATED) else None,
                up=inner,
                down=StackShape(*chosen, between, shape.channels),
            ),
            shared=self._dense_shape(shape.channels, shared) if shared else None,
        )

    def _dense_shape(self, channels: int, between: int) -> FeedForwardShape:
        inner = ProjectionShape(channels, between, self.biases.feedforward)
        return FeedForwardShape(
            gate=inner if isinstance(self.network, GATED) else None,
            up=inner,
            down=ProjectionShape(between, channels, self.biases.feedforward),
        )

    def _norm_shape(self, channels: int) -> NormShape:
        return NormShape(channels, isinstance(self.norm, LayerNorm) and self.norm.bias)

    def _usual_width(self) -> int:
        if not isinstance(self.network, GATED):
            return 4 * self.channels
        return round_up(math.ceil(self.channels * 8 / 3), ALIGNMENT)


@functools.lru_cache(maxsize=64)  # a search of layouts asks for it thousands of times
def _build_shapes(config: DecoderConfig) -> DecoderShapes:
    return config._declare_shapes()


@functools.lru_cache(maxsize=64)
def count_parameters(config: DecoderConfig) -> ParameterCount:
    """Exactly as many as `Decoder(config)` has, without making it."""
    shapes = config.shapes
    return ParameterCount(
        embedding=count(shapes.before_layers),
        layers=sum(count(layer) for layer in shapes.layers) + count(shapes.norm),
        head=count(shapes.after_layers),
        idle=count_idle(shapes.layers),
        generator=count(shapes.beside),
        further_heads=count(shapes.further_layers),
    )


def parameter_shapes(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Names and sizes of the parameters of `Decoder(config)`, without making it."""
    return dict(list_named_sizes(config.shapes))
