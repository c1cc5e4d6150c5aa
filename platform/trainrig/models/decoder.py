"""A causal language model in the manner of Llama (Touvron et al. 2023, arXiv:2302.13971).

Root-mean-square norms before each part, rotary positions, grouped queries, SwiGLU, no biases; the
output head may be the embedding itself.

Shapes: B batch, T positions, C channels, V entries of the vocabulary.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Self

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from trainrig.config import Settings
from trainrig.errors import ConfigError
from trainrig.models.attention import Attention, KeyValueCache, document_mask
from trainrig.models.embedding import Embedding
from trainrig.models.feedforward import SwiGLU
from trainrig.models.norm import RMSNorm
from trainrig.models.output import ModelOutput
from trainrig.models.positions import Rotation

# Matrix kernels work in tiles of up to 64 rows; a dim that does not fill its last one wastes it.
ALIGNMENT = 64
# Projections that add to the residual stream, one of each a layer.
RESIDUAL = ("attention.output.weight", "feedforward.down.weight")


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
    """The sizes of a decoder; None stands for a size that follows from the others."""

    kind: Literal["Decoder"] = "Decoder"
    layers: int = Field(ge=1)
    channels: int = Field(ge=1)  # width of the residual stream
    heads: int = Field(ge=1)
    kv_heads: int | None = Field(default=None, ge=1)  # None: as many as heads
    head_channels: int | None = Field(default=None, ge=1)  # None: channels / heads
    # None: 8/3 of channels, which makes SwiGLU's three matrices as large as the two of a network
    # of 4 times the channels (arXiv:2002.05202, section 3), and up to a multiple of 64.
    feedforward_channels: int | None = Field(default=None, ge=1)
    vocabulary: int | None = Field(default=None, ge=1)  # None: the tokenizer's, up to a mult. of 64
    positions: int = Field(default=2048, ge=1)  # tokens of the longest sequence
    rope_theta: float = Field(default=10_000.0, gt=0, allow_inf_nan=False)  # arXiv:2104.09864
    norm_epsilon: float = Field(default=1e-5, gt=0, allow_inf_nan=False)  # as Llama 2 and 3 have it
    tie_embeddings: bool = True
    # Standard deviation of fresh weights: GPT-2's (Radford et al. 2019).
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


class Layer(nn.Module):
    """One layer: each token looks back, then is worked on by itself."""

    def __init__(self, shape: Shape, norm_epsilon: float) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(shape.channels, norm_epsilon)
        self.attention = Attention(shape.channels, shape.heads, shape.kv_heads, shape.head_channels)
        self.feedforward_norm = RMSNorm(shape.channels, norm_epsilon)
        self.feedforward = SwiGLU(shape.channels, shape.feedforward_channels)

    def forward(
        self,
        x_BTC: Tensor,
        rotation: Rotation,
        cache: KeyValueCache | None = None,
        mask_B1TT: Tensor | None = None,
    ) -> Tensor:
        """[B, T, C] to [B, T, C]; `mask_B1TT` is true where a token may look."""
        x_BTC = x_BTC + self.attention(self.attention_norm(x_BTC), rotation, cache, mask_B1TT)
        changed_BTC: Tensor = x_BTC + self.feedforward(self.feedforward_norm(x_BTC))
        return changed_BTC


class Decoder(nn.Module):
    """Predicts each next token from those before it. Its weights are noise until `initialise`."""

    Config = DecoderConfig

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        shape = config.shape
        self.config = config
        self.shape = shape
        self.embedding = Embedding(shape.vocabulary, shape.channels)
        self.layers = nn.ModuleList(Layer(shape, config.norm_epsilon) for _ in range(shape.layers))
        self.norm = RMSNorm(shape.channels, config.norm_epsilon)
        # A tied head has no name of its own: one tensor, one entry in every checkpoint.
        self.head = (
            None
            if config.tie_embeddings
            else nn.Linear(shape.channels, shape.vocabulary, bias=False)
        )

    def forward(
        self,
        ids_BT: Tensor,
        caches: Sequence[KeyValueCache] | None = None,
        positions_BT: Tensor | None = None,
    ) -> ModelOutput:
        """Logits [B, T, V] of the token after each of `ids_BT` [B, T].

        With `caches`, one for each layer, `ids_BT` continues what they hold, and they are extended.
        With `positions_BT` [B, T], each token's place in its own document, rows hold several
        documents: a new one begins at each 0, and no token sees another's. Not both.
        """
        past = len(caches[0]) if caches else 0
        last = past + ids_BT.shape[1]
        if last > self.config.positions:
            raise ValueError(f"{last} tokens for a model of {self.config.positions} positions")
        if positions_BT is None:
            positions, mask_B1TT = torch.arange(past, last, device=ids_BT.device), None
        elif caches:
            raise ValueError("caches hold one document a row: give no positions beside them")
        else:
            positions, mask_B1TT = positions_BT, document_mask(positions_BT)
        rotation = Rotation(positions, self.shape.head_channels, self.config.rope_theta)
        x_BTC = self.embedding(ids_BT)
        for index, layer in enumerate(self.layers):
            x_BTC = layer(x_BTC, rotation, caches[index] if caches else None, mask_B1TT)
        x_BTC = self.norm(x_BTC)
        if self.head is None:
            return ModelOutput(F.linear(x_BTC, self.embedding.weight))
        return ModelOutput(self.head(x_BTC))


def initialise(model: Decoder, seed: int) -> None:
    """Give every parameter its fresh value, in place, whatever device it is on.

    Made on the meta device, a model needs `to_empty` first: nothing else of it has to be kept.
    """
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(initial_value(name, parameter.shape, model.config, seed))


def initial_value(name: str, size: Sequence[int], config: DecoderConfig, seed: int) -> Tensor:
    """The fresh value of one parameter: float32, on the CPU, a function of its arguments alone.

    Each name draws from a generator of its own, so no value depends on which others are drawn, in
    what order or where: one process and a thousand workers begin with the same weights.
    Scale: GPT-2's (Radford et al. 2019, section 2.3), with the residual projections divided by the
    root of their number, so that the stream does not grow with depth.
    """
    if len(size) == 1:
        return torch.ones(size)  # gains of the norms
    std = config.initial_std
    if name.endswith(RESIDUAL):
        std /= math.sqrt(2 * config.layers)
    digest = hashlib.blake2b(f"{seed}\n{name}".encode(), digest_size=8).digest()
    # Generators take 63 bits without wrapping to negative seeds.
    generator = torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)
    return torch.randn(tuple(size), generator=generator, dtype=torch.float32).mul_(std)


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


__all__ = [
    "Decoder",
    "DecoderConfig",
    "Layer",
    "ParameterCount",
    "Shape",
    "count_parameters",
    "initial_value",
    "initialise",
]
