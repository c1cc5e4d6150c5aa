"""The settings of an encoder-decoder: a decoder's, and the encoder that it looks at.

What follows from them (sizes, parameters, operations) needs no torch.
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

# What T5 has not, by the name of the setting: nothing here computes it.
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
    """A learnt number for each head and bucket of distances, added to the logits of attention (T5,
    Raffel et al. 2019, arXiv:1910.10683, section 2.1)."""

    kind: Literal["RelativeBias"] = "RelativeBias"
    buckets: int = Field(default=32, ge=4, multiple_of=4)  # of distances
    # Distance from which on all are in one bucket; half of the buckets are for shorter ones, each
    # for one, and the rest widen as logarithms do.
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
    """The settings of an encoder-decoder. Without any other, it is in the manner of T5 v1.1 (Raffel
    et al. 2019, arXiv:1910.10683; Shazeer 2020, arXiv:2002.05202): relative positions, RMSNorm
    before each part, GEGLU, no biases, a head of its own, and queries that are not scaled."""

    kind: Literal["EncoderDecoder"] = "EncoderDecoder"  # type: ignore[assignment]
    encoder_layers: int | None = Field(default=None, ge=1)  # None: as many as `layers`
    # How the model knows the order of tokens; one table for the encoder, one for the decoder.
    position_embedding: RelativeBias = RelativeBias()  # type: ignore[assignment]
    # What attention has beside its heads; of this, the scale of queries alone.
    attention: AttentionSettings = AttentionSettings(query_scale=1.0)
    # What a layer does to each token by itself.
    feedforward: Network = Field(default=GEGLU(), discriminator="kind")
    norm: Normalisation = RMSNorm(epsilon=1e-6)  # how activations are kept at one scale
    tie_embeddings: bool = False  # whether the output head uses the embedding's weights

    @model_validator(mode="after")
    def _check_encoder_decoder(self) -> Self:
        plain = {name: field.default for name, field in type(self).model_fields.items()}
        for name in _UNUSED:
            if getattr(self, name) != plain[name]:
                raise ValueError(f"{name}: an encoder-decoder has no such part; leave it out")
        scale = self.attention.query_scale
        if self.attention != AttentionSettings(query_scale=scale):
            raise ValueError(
                "attention: an encoder-decoder has query_scale alone; leave the others out"
            )
        return self

    @property
    def encoding_layers(self) -> int:
        """Layers of the encoder."""
        return self.layers if self.encoder_layers is None else self.encoder_layers

    @property
    def shapes(self) -> EncoderDecoderShapes:
        """The sizes of every parameter. Raises ConfigError while the vocabulary is not settled."""
        found = super().shapes
        assert isinstance(found, EncoderDecoderShapes)
        return found

    def _declare_shapes(self) -> EncoderDecoderShapes:
        plain, shape = super()._declare_shapes(), self.shape
        parts: dict[str, Any] = {
            each.name: getattr(plain, each.name) for each in dataclasses.fields(plain)
        }
        layer = plain.layers[0]
        of_layer = {each.name: getattr(layer, each.name) for each in dataclasses.fields(layer)}
        norm = self._norm_shape(shape.channels)
        writing = CrossLayerShape(**of_layer, cross_norm=norm, cross_attention=layer.attention)
        bias = TableShape(self.position_embedding.buckets, shape.heads)
        parts["layers"] = (layer,) * self.encoding_layers + (writing,) * self.layers
        return EncoderDecoderShapes(
            **parts, encoder_bias=bias, decoder_bias=bias, encoder_norm=norm
        )
