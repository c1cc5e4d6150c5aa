"""The sizes of a decoder, and what follows from them alone: no torch is needed to know it."""

import math
from dataclasses import dataclass
from typing import Literal, Self

from pydantic import Field, model_validator

from trainrig.config import Settings
from trainrig.errors import ConfigError

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
    """Parameters of a decoder by where they are. A tied head is the embedding: it counts 0."""

    embedding: int
    layers: int  # with the norm after the last of them
    head: int

    @property
    def total(self) -> int:
        """All that an optimizer sees."""
        return self.embedding + self.layers + self.head


class DecoderConfig(Settings):
    """The sizes of a decoder; one that is left out follows from the others."""

    kind: Literal["Decoder"] = "Decoder"
    layers: int = Field(ge=1)  # number of layers
    channels: int = Field(ge=1)  # width of the residual stream
    heads: int = Field(ge=1)  # attention heads
    # Heads of keys and values; None: as many as `heads`.
    kv_heads: int | None = Field(default=None, ge=1)
    head_channels: int | None = Field(default=None, ge=1)  # width of a head; None: channels / heads
    # Width of the feed-forward network; None: 8/3 of channels, up to a multiple of 64, which makes
    # SwiGLU's three matrices as large as the two of a network of 4 times the channels
    # (arXiv:2002.05202, section 3).
    feedforward_channels: int | None = Field(default=None, ge=1)
    # Entries of the embedding; None: the tokenizer's, rounded up to a multiple of 64.
    vocabulary: int | None = Field(default=None, ge=1)
    positions: int = Field(default=2048, ge=1)  # length of the longest sequence, in tokens
    # Base of the rotary position embedding (arXiv:2104.09864); larger for longer sequences.
    rope_theta: float = Field(default=10_000.0, gt=0, allow_inf_nan=False)
    # Number added under the root of RMSNorm, against division by 0; Llama 2 and 3 have the same.
    norm_epsilon: float = Field(default=1e-5, gt=0, allow_inf_nan=False)
    tie_embeddings: bool = True  # whether the output head uses the embedding's weights
    # Standard deviation of fresh weights; GPT-2's (Radford et al. 2019).
    initial_std: float = Field(default=0.02, gt=0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _check_heads(self) -> Self:
        if self.channels % self.heads:
            raise ValueError(
                f"channels ({self.channels}) must be a multiple of heads ({self.heads}); "
                f"the nearest above: {_round_up(self.channels, self.heads)}"
            )
        if self.kv_heads is not None and self.heads % self.kv_heads:
            fitting = ", ".join(str(n) for n in range(1, self.heads + 1) if self.heads % n == 0)
            raise ValueError(
                f"heads ({self.heads}) must be a multiple of kv_heads ({self.kv_heads}); "
                f"kv_heads may be {fitting}"
            )
        head_channels = self.head_channels or self.channels // self.heads
        if head_channels % 2:
            raise ValueError(
                f"a head has {head_channels} channels, but rotary positions turn them in pairs; "
                "set head_channels to an even number"
            )
        return self

    def for_tokenizer(self, entries: int) -> Self:
        """The same with its vocabulary settled for a tokenizer of `entries` ids.

        Raises ConfigError when the vocabulary set in the run file has fewer.
        """
        if self.vocabulary is None:
            return self.model_copy(update={"vocabulary": _round_up(entries, ALIGNMENT)})
        if self.vocabulary < entries:
            raise ConfigError(
                f"model.vocabulary ({self.vocabulary}) is below the tokenizer's {entries} entries; "
                f"leave it out, or set {_round_up(entries, ALIGNMENT)}"
            )
        return self

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
            feedforward_channels=self.feedforward_channels
            or _round_up(math.ceil(self.channels * 8 / 3), ALIGNMENT),
        )


def count_parameters(config: DecoderConfig) -> ParameterCount:
    """Exactly as many as `Decoder(config)` has, without making it."""
    shape = config.shape
    attention = 2 * shape.channels * shape.head_channels * (shape.heads + shape.kv_heads)
    feedforward = 3 * shape.channels * shape.feedforward_channels
    norms = 2 * shape.channels
    table = shape.vocabulary * shape.channels
    return ParameterCount(
        embedding=table,
        layers=shape.layers * (attention + feedforward + norms) + shape.channels,
        head=0 if config.tie_embeddings else table,
    )


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
