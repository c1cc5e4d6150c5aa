"""Settings of an encoder-decoder: those of a decoder, and of the encoder that it attends to.

Shapes, parameters and operations follow from them without torch.
"""

import dataclasses
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from trainrig.config import Settings
from trainrig.models.architecture.attention import AttentionSettings
from trainrig.models.architecture.feedforward import GEGLU, Network
from trainrig.models.architecture.norms import Normalisation, RMSNorm
from trainrig.models.architecture.shapes import (
    CrossLayerShape,
    EncoderDecoderShapes,
    TableShape,
)
from trainrig.models.decoder_config import DecoderConfig

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
    feedforward: Network = Field(default=GEGLU(), discriminator="kind")
    norm: Normalisation = RMSNorm(epsilon=1e-6)  # kind of norm
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
