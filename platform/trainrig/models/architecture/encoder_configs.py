"""Settings of encoders and of encoder-decoders, which extend those of a decoder.

An encoder adds masked-token prediction; an encoder-decoder adds the encoder that it attends to.
Shapes, parameters and operations follow from them without torch.
"""

import dataclasses
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, ValidationError, model_validator

from trainrig.config import Settings
from trainrig.models.architecture import layer_settings
from trainrig.models.architecture.attention_settings import AttentionSettings, Biases, SlidingWindow
from trainrig.models.architecture.decoder_config import DecoderConfig, Shape
from trainrig.models.architecture.decoder_fields import Head
from trainrig.models.architecture.shapes import (
    CrossLayerShape,
    EncoderDecoderShapes,
    EncoderShapes,
    LayerShape,
    ProjectionShape,
    TableShape,
    TransformShape,
    VectorShape,
)


class HeadTransform(Settings):
    """Linear layer, activation and norm before the logits.

    BERT's (Devlin et al. 2018, arXiv:1810.04805); it is in the authors' code, not in the paper.
    """

    bias: bool = False  # add a bias to the linear layer


class GeneratorSizes(Settings):
    """Sizes of ELECTRA's generator: a small encoder that replaces tokens during training.

    All other settings, and the embedding, are those of the model that finds the replaced tokens
    (Clark et al. 2020, arXiv:2003.10555, section 3.2).
    """

    # Number of layers; None: the same number as in the model.
    layers: int | None = Field(default=None, ge=1)
    # Width of the residual stream; the paper advises a quarter to a half of the model's.
    channels: int = Field(ge=1)
    heads: int = Field(ge=1)  # attention heads
    # Width of the feed-forward network; None: the default for a model with these channels.
    feedforward_channels: int | None = Field(default=None, ge=1)


class EncoderConfig(DecoderConfig):
    """Settings of an encoder; with default settings it follows ModernBERT.

    That is rotary positions, norms before each part, GEGLU, no biases (Warner et al. 2024,
    arXiv:2412.13663).
    """

    bidirectional: ClassVar[bool] = True
    biased_when_tied: ClassVar[bool] = True

    kind: Literal["Encoder"] = "Encoder"  # type: ignore[assignment]  # not the base class's kind
    # Feed-forward network of a layer.
    feedforward: layer_settings.FeedForward = layer_settings.GEGLU(tanh=False)
    norm: layer_settings.Normalisation = layer_settings.LayerNorm(bias=False)  # kind of norm
    biases: Biases = Biases(head=True)  # linear layers that add a bias
    # Normalise the embedding. With PreNorm, the first layer then has no norm before attention,
    # because it would normalise twice.
    embedding_norm: bool = True
    # Width of the embedding of tokens, positions and segments, and of the input of the token
    # logits; None: `channels`. If it is not `channels`, a linear layer leads from it to the first
    # layer.
    embedding_channels: int | None = Field(default=None, ge=1)
    # Number of learnt segment embeddings, which mark the text of a pair that a token belongs to. 0:
    # none.
    segments: int = Field(default=0, ge=0)
    # Number of entries before the first position in the learnt position table; RoBERTa has 2.
    positions_offset: int = Field(default=0, ge=0)
    # Layer before the logits; None: no such layer.
    transform: HeadTransform | None = HeadTransform()
    # Input of a classifier's head: the first token of a text, or the mean of all its tokens.
    pooling: Literal["first", "mean"] = "first"
    # Activation of the pooler before a classifier's head, with PostNorm: BERT's tanh or ELECTRA's
    # GELU.
    pooler: Literal["tanh", "GELU"] = "tanh"
    # ELECTRA's generator, which is trained with the model and replaces tokens for it to find. Only
    # with head = "replaced".
    generator: GeneratorSizes | None = None

    @model_validator(mode="after")
    def _check_encoder(self) -> Self:
        if self.head == "score":
            raise ValueError(
                'head = "score": a reward model must be a decoder; choose another head'
            )
        if self.positions_offset and not isinstance(
            self.position_embedding, layer_settings.LearnedPositions
        ):
            raise ValueError(
                f"positions_offset is set, but the position_embedding is "
                f"{self.position_embedding.kind}; leave it out, or choose LearnedPositions"
            )
        width = self.embedding_width
        fits = self.tie_embeddings and self.transform is not None
        if width != self.channels and self.head == "tokens" and not fits:
            raise ValueError(
                f"embedding_channels ({width}) differs from channels ({self.channels}), so token "
                "logits need tied embeddings and a transform; leave tie_embeddings and transform "
                "out"
            )
        if self.mup is not None and (self.generator or width != self.channels):
            raise ValueError(
                "mup supports neither a generator nor embedding_channels; leave it out"
            )
        return self

    @model_validator(mode="after")
    def _check_generator(self) -> Self:
        generator = self.generator_model
        if generator is None:
            return self
        if self.head != "replaced":
            raise ValueError(
                f'generator needs head = "replaced", but the head is "{self.head}"; set it, or '
                "leave the generator out"
            )
        if isinstance(self.feedforward, layer_settings.MixtureOfExperts):
            raise ValueError(
                "generator: a mixture of experts does not balance its layers; leave it "
                "out, or choose a dense feedforward"
            )
        try:
            EncoderConfig.model_validate(generator.model_dump())
        except ValidationError as error:
            message = error.errors()[0]["msg"].removeprefix("Value error, ")
            raise ValueError(f"generator: {message}") from None
        return self

    def _check_window(self, window: SlidingWindow) -> None:
        if window.size % 2 == 0:
            raise ValueError(
                f"attention.window.size ({window.size}) must be odd in an encoder, because it "
                f"reaches equally far to both sides; use {window.size + 1}"
            )
        if window.size > 2 * self.positions - 1:
            raise ValueError(
                f"attention.window.size ({window.size}) covers all {self.positions} positions, "
                "so the window hides nothing; lower it, or leave the window out"
            )

    @classmethod
    def from_decoder(cls, config: DecoderConfig) -> Self:
        """Return the settings of an encoder that takes the weights of a decoder of `config`.

        Tokens also attend to later tokens, and a window reaches as far ahead as back.
        """
        written = config.model_dump(exclude={"kind"})
        window = config.attention.window
        if window is not None:
            wide = window.model_copy(update={"size": 2 * window.size - 1})
            written["attention"] = config.attention.model_copy(update={"window": wide})
        return cls.model_validate({**written, "embedding_norm": False, "transform": None})

    @property
    def embedding_width(self) -> int:
        """Width of the embedding, in channels."""
        return self.embedding_channels or self.channels

    @property
    def logit_channels(self) -> int:
        """Width of the hidden states that the head reads."""
        return self.embedding_width if self.head == "tokens" else self.channels

    @property
    def generator_model(self) -> "EncoderConfig | None":
        """Settings of the generator, or None; it shares this model's embedding."""
        sizes = self.generator
        if sizes is None:
            return None
        update = {
            "layers": sizes.layers or self.layers,
            "channels": sizes.channels,
            "heads": sizes.heads,
            "kv_heads": None,
            "head_channels": None,
            "feedforward_channels": sizes.feedforward_channels,
            "embedding_channels": self.embedding_width,
            "transform": self.transform or HeadTransform(),
            "tie_embeddings": True,
            "head": "tokens",
            "generator": None,
        }
        return EncoderConfig.model_copy(self, update=update)

    @property
    def without_generator(self) -> Self:
        """The same settings without a generator."""
        return self.model_copy(update={"generator": None})

    def with_head(self, head: Head, labels: tuple[str, ...] = ()) -> Self:
        """Return these settings with a head of another kind.

        The generator is dropped unless the head is "replaced".
        """
        changed = super().with_head(head, labels)
        return changed if head == "replaced" else changed.without_generator

    @property
    def reads_last_states(self) -> bool:
        """Return whether classes and spans are predicted from the last hidden states, as in BERT.

        BERT's classifier reads them through the pooler, its span head directly. Otherwise both read
        the output of `transform`, as in ModernBERT.
        """
        of_text = self.head in ("classes", "spans")
        return of_text and isinstance(self.block, layer_settings.PostNorm)

    @property
    def shapes(self) -> EncoderShapes:
        """Shapes of all parameters. Raises ConfigError while the vocabulary size is unknown."""
        found = super().shapes
        assert isinstance(found, EncoderShapes)
        return found

    def _declare_shapes(self) -> EncoderShapes:
        shape = self.shape
        plain = super()._declare_shapes()
        channels = shape.channels
        transform = None
        width = self.embedding_width
        generator = self.generator_model
        if self.head == "replaced":  # The head for replaced tokens has no norm in ELECTRA.
            bias = self.transform is None or self.transform.bias
            transform = TransformShape(ProjectionShape(channels, channels, bias), None)
        elif self.transform is not None and not self.reads_last_states:
            between = self.logit_channels
            dense = ProjectionShape(channels, between, self.transform.bias)
            transform = TransformShape(dense, self._norm_shape(between))
        pooled = self.reads_last_states and self.head == "classes"
        parts = {field.name: getattr(plain, field.name) for field in dataclasses.fields(plain)}
        if isinstance(self.position_embedding, layer_settings.LearnedPositions):
            entries = self.positions + self.positions_offset
            parts["position_embedding"] = TableShape(entries, width)
        parts["embedding"] = TableShape(shape.vocabulary, width)
        return EncoderShapes(
            **parts,
            segment_embedding=TableShape(self.segments, width) if self.segments else None,
            embedding_norm=self._norm_shape(width) if self.embedding_norm else None,
            embedding_projection=ProjectionShape(width, channels, bias=True)
            if width != channels
            else None,
            transform=transform,
            pooler=ProjectionShape(channels, channels, bias=True) if pooled else None,
            head_bias=VectorShape(shape.vocabulary)
            if self.head == "tokens" and self.tie_embeddings and self.biases.head
            else None,
            generator=None if generator is None else _drop_tables(generator.shapes),
        )

    def _layer_shape(self, shape: Shape, index: int) -> LayerShape:
        layer = super()._layer_shape(shape, index)
        if index == 0 and self.embedding_norm and isinstance(self.block, layer_settings.PreNorm):
            return dataclasses.replace(layer, attention_norm=None)
        return layer


# Parts that a generator shares with the model that it is trained with.
SHARED = ("embedding", "position_embedding", "segment_embedding", "embedding_norm")


def _drop_tables(shapes: EncoderShapes) -> EncoderShapes:
    """Return a generator's shapes without the parts that it shares."""
    return dataclasses.replace(shapes, **dict.fromkeys(SHARED))  # type: ignore[arg-type]


# Settings that T5 does not have, and that the encoder-decoder does not compute.
_UNUSED = (
    "biases",
    "block",
    "embedding_multiplier",
    "further_heads",
    "head",
    "logit_cap",
    "mup",
    "residual_multiplier",
)


class RelativeBias(Settings):
    """Learnt bias of attention logits for each head and bucket of distances.

    Source: T5, Raffel et al. 2019, arXiv:1910.10683, section 2.1.
    """

    kind: Literal["RelativeBias"] = "RelativeBias"
    buckets: int = Field(default=32, ge=4, multiple_of=4)  # number of buckets of distances
    # Distance from which on all distances share a bucket. Half of the buckets hold one short
    # distance each; the others widen logarithmically.
    farthest: int = Field(default=128, ge=1)

    @model_validator(mode="after")
    def _check_farthest(self) -> Self:
        if self.farthest <= self.buckets // 2:
            raise ValueError(
                f"farthest ({self.farthest}) must be above {self.buckets // 2}, half of the "
                f"{self.buckets} buckets"
            )
        return self


class EncoderDecoderConfig(DecoderConfig):
    """Settings of an encoder-decoder; with default settings it follows T5 v1.1.

    That is relative positions, RMSNorm before each part, GEGLU, no biases, a separate head, and
    unscaled queries (Raffel et al. 2019, arXiv:1910.10683; Shazeer 2020, arXiv:2002.05202).
    """

    kind: Literal["EncoderDecoder"] = "EncoderDecoder"  # type: ignore[assignment]
    # Number of encoder layers; None: the same number as `layers`.
    encoder_layers: int | None = Field(default=None, ge=1)
    # Encoding of positions; encoder and decoder have one table each.
    position_embedding: RelativeBias = RelativeBias()  # type: ignore[assignment]
    # Options of attention; only `query_scale` can be set.
    attention: AttentionSettings = AttentionSettings(query_scale=1.0)
    # Feed-forward network of a layer.
    feedforward: layer_settings.Network = Field(
        default=layer_settings.GEGLU(), discriminator="kind"
    )
    norm: layer_settings.Normalisation = layer_settings.RMSNorm(epsilon=1e-6)  # kind of norm
    tie_embeddings: bool = False  # use the embedding's weights for the output head

    @model_validator(mode="after")
    def _check_encoder_decoder(self) -> Self:
        plain = {name: field.default for name, field in type(self).model_fields.items()}
        for name in _UNUSED:
            if getattr(self, name) != plain[name]:
                raise ValueError(
                    f"{name}: an encoder-decoder does not support this setting; leave it out"
                )
        scale = self.attention.query_scale
        if self.attention != AttentionSettings(query_scale=scale):
            raise ValueError(
                "attention: an encoder-decoder supports only query_scale; leave other keys out"
            )
        return self

    @property
    def encoding_layers(self) -> int:
        """Number of encoder layers."""
        return self.layers if self.encoder_layers is None else self.encoder_layers

    @property
    def shapes(self) -> EncoderDecoderShapes:
        """Shapes of all parameters. Raises ConfigError while the vocabulary size is unknown."""
        found = super().shapes
        assert isinstance(found, EncoderDecoderShapes)
        return found

    def _declare_shapes(self) -> EncoderDecoderShapes:
        plain = super()._declare_shapes()
        shape = self.shape
        parts: dict[str, Any] = {
            field.name: getattr(plain, field.name) for field in dataclasses.fields(plain)
        }
        layer = plain.layers[0]
        of_layer = {field.name: getattr(layer, field.name) for field in dataclasses.fields(layer)}
        norm = self._norm_shape(shape.channels)
        writing = CrossLayerShape(**of_layer, cross_norm=norm, cross_attention=layer.attention)
        bias = TableShape(self.position_embedding.buckets, shape.heads)
        parts["layers"] = (layer,) * self.encoding_layers + (writing,) * self.layers
        return EncoderDecoderShapes(
            **parts, encoder_bias=bias, decoder_bias=bias, encoder_norm=norm
        )
