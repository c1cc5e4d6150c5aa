"""The settings of an encoder: those of a decoder, and what masked prediction has beside.

What follows from them (sizes, parameters, operations) needs no torch.
"""

import dataclasses
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from trainrig.config import Settings
from trainrig.models.architecture.attention import Biases, SlidingWindow
from trainrig.models.architecture.feedforward import GEGLU, FeedForward
from trainrig.models.architecture.norms import LayerNorm, Normalisation, PostNorm, PreNorm
from trainrig.models.architecture.positions import LearnedPositions
from trainrig.models.architecture.shapes import (
    EncoderShapes,
    LayerShape,
    ProjectionShape,
    TableShape,
    TransformShape,
    VectorShape,
)
from trainrig.models.decoder_config import DecoderConfig, Shape


class HeadTransform(Settings):
    """A product, the feed-forward network's function and a norm before the logits (Devlin et al.
    2018, arXiv:1810.04805; in their code, not in the paper)."""

    bias: bool = False  # whether a learnt vector is added to the product


class EncoderConfig(DecoderConfig):
    """The settings of an encoder. Without any other, it is in the manner of ModernBERT (Warner et
    al. 2024, arXiv:2412.13663): rotary positions, norms before each part, GEGLU, no biases."""

    bidirectional: ClassVar[bool] = True
    biased_when_tied: ClassVar[bool] = True

    kind: Literal["Encoder"] = "Encoder"  # type: ignore[assignment]  # what tells the two apart
    feedforward: FeedForward = GEGLU(tanh=False)  # what a layer does to each token by itself
    norm: Normalisation = LayerNorm(bias=False)  # how activations are kept at one scale
    biases: Biases = Biases(head=True)  # which products have a vector added
    # Whether embedded tokens are normed; then, with PreNorm, the first layer has no norm of its
    # own before attention: it would norm twice.
    embedding_norm: bool = True
    # Learnt vectors of segments, added to a token's by which text of a pair it is in; 0: none.
    segments: int = Field(default=0, ge=0)
    # Entries of the learnt positions that come before the first position's; RoBERTa has 2.
    positions_offset: int = Field(default=0, ge=0)
    # What each place goes through before its logits; None: nothing.
    transform: HeadTransform | None = HeadTransform()
    # What of a text its classes are told by: its first token, or the mean of all.
    pooling: Literal["first", "mean"] = "first"

    @model_validator(mode="after")
    def _check_encoder(self) -> Self:
        if self.head == "score":
            raise ValueError('head = "score": no reward model is an encoder; leave it out')
        if self.positions_offset and not isinstance(self.position_embedding, LearnedPositions):
            raise ValueError(
                f"positions_offset is set, but the position_embedding is "
                f"{self.position_embedding.kind}; leave it out, or choose LearnedPositions"
            )
        return self

    def _check_window(self, window: SlidingWindow) -> None:
        if window.size % 2 == 0:
            raise ValueError(
                f"attention.window.size ({window.size}) must be odd in an encoder: a token sees "
                f"itself and as many on either side; {window.size + 1} would be"
            )
        if window.size > 2 * self.positions - 1:
            raise ValueError(
                f"attention.window.size ({window.size}) is so wide for {self.positions} positions "
                "that it hides nothing; lower it, or leave the window out"
            )

    @classmethod
    def of_decoder(cls, config: DecoderConfig) -> Self:
        """The encoder that has the weights of a decoder of `config`: the same but that each token
        also sees those after it, a window as far ahead as back."""
        written = config.model_dump(exclude={"kind"})
        window = config.attention.window
        if window is not None:
            wide = window.model_copy(update={"size": 2 * window.size - 1})
            written["attention"] = config.attention.model_copy(update={"window": wide})
        return cls.model_validate({**written, "embedding_norm": False, "transform": None})

    @property
    def tells_from_stream(self) -> bool:
        """Whether classes and spans are told from the last hidden states as BERT does: classes
        through its pooler, a product and tanh, and spans as they are. Else both are told from what
        `transform` makes, as ModernBERT does."""
        return self.head != "tokens" and isinstance(self.block, PostNorm)

    @property
    def shapes(self) -> EncoderShapes:
        """The sizes of every parameter. Raises ConfigError while the vocabulary is not settled."""
        found = super().shapes
        assert isinstance(found, EncoderShapes)
        return found

    def _declare_shapes(self) -> EncoderShapes:
        shape, plain = self.shape, super()._declare_shapes()
        channels = shape.channels
        norm, transform = self._norm_shape(channels), None
        if self.transform is not None and not self.tells_from_stream:
            dense = ProjectionShape(channels, channels, self.transform.bias)
            transform = TransformShape(dense, norm)
        pooled = self.tells_from_stream and self.head == "classes"
        parts = {each.name: getattr(plain, each.name) for each in dataclasses.fields(plain)}
        if isinstance(self.position_embedding, LearnedPositions):
            entries = self.positions + self.positions_offset
            parts["position_embedding"] = TableShape(entries, channels)
        return EncoderShapes(
            **parts,
            segment_embedding=TableShape(self.segments, channels) if self.segments else None,
            embedding_norm=norm if self.embedding_norm else None,
            transform=transform,
            pooler=ProjectionShape(channels, channels, bias=True) if pooled else None,
            head_bias=VectorShape(shape.vocabulary)
            if self.head == "tokens" and self.tie_embeddings and self.biases.head
            else None,
        )

    def _layer_shape(self, shape: Shape, index: int) -> LayerShape:
        layer = super()._layer_shape(shape, index)
        if index == 0 and self.embedding_norm and isinstance(self.block, PreNorm):
            return dataclasses.replace(layer, attention_norm=None)
        return layer
