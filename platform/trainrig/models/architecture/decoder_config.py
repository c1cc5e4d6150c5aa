"""Settings of a decoder, and the shapes and parameter counts that follow, without torch."""

import functools
import math
from dataclasses import dataclass
from typing import Any, Self

from pydantic import ValidationError

from trainrig.errors import ConfigError
from trainrig.models.architecture import layer_settings
from trainrig.models.architecture.attention_settings import hides_by_distance
from trainrig.models.architecture.decoder_fields import DecoderFields, Head, round_up
from trainrig.models.architecture.shapes import (
    AttentionShape,
    DecoderShapes,
    ExpertsShape,
    FeedForwardShape,
    LayerShape,
    MixtureShape,
    NormShape,
    ProjectionShape,
    StackedVectorShape,
    StackShape,
    TableShape,
    VectorShape,
    count,
    count_idle,
    list_named_sizes,
)

# Matrix kernels work in tiles of up to 64 rows; a partly filled last tile wastes time.
ALIGNMENT = 64


@dataclass(frozen=True)
class Shape:
    """Sizes of a decoder, with every default resolved."""

    vocabulary: int
    layers: int
    channels: int
    heads: int
    kv_heads: int
    head_channels: int
    feedforward_channels: int


@dataclass(frozen=True)
class ParameterCount:
    """Numbers of parameters by where they are; a tied head is the embedding and counts 0."""

    embedding: int  # token embedding, and learnt positions and segments
    layers: int  # all layers, and the norm after the last one
    head: int
    idle: int = 0  # parameters of experts not chosen for a token; the other fields include them
    # The generator trained with an ELECTRA encoder, without the shared embedding.
    generator: int = 0
    further_heads: int = 0  # heads that predict the tokens after the next one

    @property
    def active(self) -> int:
        """Number of parameters that one token uses."""
        return self.total - self.idle

    @property
    def total(self) -> int:
        """Number of parameters that an optimizer updates."""
        in_training = self.generator + self.further_heads
        return self.embedding + self.layers + self.head + in_training


class DecoderConfig(DecoderFields):
    """Settings of a decoder; a size that is left out follows from the others.

    With default settings the decoder follows Llama (Touvron et al. 2023, arXiv:2302.13971).
    """

    @property
    def plain(self) -> Self:
        """The same settings with the factors of `mup` on attention and head logits written out.

        The model computes the same; only the initial weights and the learning rates depend on
        `mup`.
        """
        if self.mup is None:
            return self
        width = self.head_channels or self.channels // self.heads
        scale = self.mup.query_scale(self.attention.query_scale, width)
        multiplier = self.logit_multiplier
        if self.tie_embeddings:  # A separate head has smaller initial weights instead.
            multiplier /= self.mup.multiple(self.channels)
        attention = self.attention.model_copy(update={"query_scale": scale})
        update = {"mup": None, "attention": attention, "logit_multiplier": multiplier}
        return self.model_copy(update=update)

    @property
    def network(self) -> layer_settings.Network:
        """Settings of the feed-forward network, or of one expert."""
        chosen = self.feedforward
        return chosen.network if isinstance(chosen, layer_settings.MixtureOfExperts) else chosen

    def for_tokenizer(self, entries: int) -> Self:
        """Return these settings with the vocabulary size set for a tokenizer of `entries` ids.

        Raises ConfigError if the run file sets a vocabulary smaller than that.
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
        """Return these settings with a head of another kind."""
        update: dict[str, Any] = {"head": head, "labels": labels}
        # An encoder's setting applies only to its token logits.
        if not self.bidirectional and head != "tokens":
            update["biases"] = self.biases.model_copy(update={"head": False})
        return self.model_copy(update=update)

    def with_score_head(self) -> Self:
        """Return these settings with a head of one score for each place instead of logits."""
        return self.with_head("score")

    @property
    def description(self) -> str:
        """Phrase for this kind of model in error messages, by its head."""
        return {
            "tokens": "a language model",
            "score": "a reward model",
            "classes": "a classifier",
            "spans": "an extractive question-answering model",
            "replaced": "a replaced-token detector",
        }[self.head]

    @property
    def outputs(self) -> int:
        """Number of values that the head gives for each place or text."""
        if self.head == "tokens":
            return self.shape.vocabulary
        return {"score": 1, "classes": len(self.labels), "spans": 2, "replaced": 1}[self.head]

    @property
    def logit_channels(self) -> int:
        """Width of the hidden states that the head reads."""
        return self.channels

    @property
    def generator_model(self) -> "DecoderConfig | None":
        """Settings of the generator that replaces tokens in training (ELECTRA), or None."""
        return None

    @property
    def without_generator(self) -> Self:
        """The same settings without a generator."""
        return self

    @property
    def without_further_heads(self) -> Self:
        """The same settings with only the head for the next token."""
        return self.model_copy(update={"further_heads": 0}) if self.further_heads else self

    def with_further_heads(self, count: int) -> Self:
        """Return these settings with `count` heads for the tokens after the next one.

        Raises ValueError if this kind of model cannot have any.
        """
        try:
            return type(self).model_validate({**dict(self), "preset": None, "further_heads": count})
        except ValidationError as error:
            raise ValueError(error.errors()[0]["msg"].removeprefix("Value error, ")) from None

    def takes_mask(self, seen: int) -> bool:
        """Return whether the kernel of some layer may take a mask of `seen` positions.

        Attention in blocks takes none.
        """
        attention = self.attention
        window = self.attention.window
        if attention.logit_cap is not None or attention.sinks:
            return False
        if isinstance(self.position_embedding, layer_settings.Alibi):
            return False
        local = window is not None and all(map(window.is_local, range(self.layers)))
        size = None if window is None else window.size
        hides = hides_by_distance(size, seen, not self.bidirectional)
        return not local or not hides or self.further_heads > 0

    @property
    def shape(self) -> Shape:
        """The sizes, with defaults resolved. Raises ConfigError without a vocabulary size."""
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
        """Shapes of all parameters. Raises ConfigError while the vocabulary size is unknown."""
        return _build_shapes(self)

    def _declare_shapes(self) -> DecoderShapes:
        shape = self.shape
        learnt = isinstance(self.position_embedding, layer_settings.LearnedPositions)
        return DecoderShapes(
            embedding=TableShape(shape.vocabulary, shape.channels),
            position_embedding=TableShape(self.positions, shape.channels) if learnt else None,
            layers=tuple(self._layer_shape(shape, index) for index in range(self.layers)),
            norm=None
            if isinstance(self.block, layer_settings.PostNorm)
            else self._norm_shape(shape.channels),
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
        norm = self._norm_shape(shape.channels)
        block = self.block
        before = None if isinstance(block, layer_settings.OutputNorm) else norm
        after = (
            norm
            if isinstance(block, layer_settings.OutputNorm | layer_settings.SandwichNorm)
            else None
        )
        shared = isinstance(block, layer_settings.ParallelBlock) and block.shared_norm
        return LayerShape(
            attention_norm=before,
            attention=self._attention_shape(shape),
            attention_output_norm=after,
            feedforward_norm=None if shared else before,
            feedforward=self._feedforward_shape(shape, index),
            feedforward_output_norm=after,
        )

    def _attention_shape(self, shape: Shape) -> AttentionShape:
        queries = shape.heads * shape.head_channels
        keys = shape.kv_heads * shape.head_channels
        wide = self.attention.qk_norm == "projection"
        normed = self.attention.qk_norm is not None
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
        return self.attention.add_parts(plain, shape.heads)

    def _feedforward_shape(self, shape: Shape, index: int) -> FeedForwardShape | MixtureShape:
        mixture = self.feedforward
        if not isinstance(mixture, layer_settings.MixtureOfExperts) or index < mixture.dense_layers:
            return self._dense_shape(shape.channels, shape.feedforward_channels)
        between = mixture.expert_channels or shape.feedforward_channels
        chosen = mixture.experts, mixture.active
        inner = StackShape(*chosen, shape.channels, between)
        shared = mixture.shared_experts * between
        gated = isinstance(self.network, layer_settings.GATED)
        biased = self.biases.feedforward
        inner_bias = StackedVectorShape(*chosen, between) if biased else None
        return MixtureShape(
            router=ProjectionShape(shape.channels, mixture.experts, mixture.router_bias),
            balance_bias=VectorShape(mixture.experts) if mixture.balance_bias else None,
            experts=ExpertsShape(
                gate=inner if gated else None,
                up=inner,
                down=StackShape(*chosen, between, shape.channels),
                gate_bias=inner_bias if gated else None,
                up_bias=inner_bias,
                down_bias=StackedVectorShape(*chosen, shape.channels) if biased else None,
            ),
            shared=self._dense_shape(shape.channels, shared) if shared else None,
            shared_gate=ProjectionShape(shape.channels, 1) if mixture.shared_gate else None,
        )

    def _dense_shape(self, channels: int, between: int) -> FeedForwardShape:
        inner = ProjectionShape(channels, between, self.biases.feedforward)
        return FeedForwardShape(
            gate=inner if isinstance(self.network, layer_settings.GATED) else None,
            up=inner,
            down=ProjectionShape(between, channels, self.biases.feedforward),
        )

    def _norm_shape(self, channels: int) -> NormShape:
        return NormShape(
            channels, isinstance(self.norm, layer_settings.LayerNorm) and self.norm.bias
        )

    def _usual_width(self) -> int:
        if not isinstance(self.network, layer_settings.GATED):
            return 4 * self.channels
        return round_up(math.ceil(self.channels * 8 / 3), ALIGNMENT)


@functools.lru_cache(maxsize=64)  # A search for layouts reads the shapes thousands of times.
def _build_shapes(config: DecoderConfig) -> DecoderShapes:
    return config._declare_shapes()


@functools.lru_cache(maxsize=64)
def count_parameters(config: DecoderConfig) -> ParameterCount:
    """Return the exact number of parameters of `Decoder(config)`, without building it."""
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
    """Return the shape of each parameter of `Decoder(config)` by name, without building it."""
    return dict(list_named_sizes(config.shapes))
