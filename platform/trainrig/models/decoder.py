"""A causal language model in the manner of Llama (Touvron et al. 2023, arXiv:2302.13971).

Root-mean-square norms before each part, rotary positions, grouped queries, SwiGLU, no biases; the
output head may be the embedding itself.

Shapes: B batch, T positions, C channels, V entries of the vocabulary.
"""

import hashlib
import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainrig.models.attention import Attention, KeyValueCache, document_mask
from trainrig.models.decoder_config import DecoderConfig, ParameterCount, Shape, count_parameters
from trainrig.models.embedding import Embedding
from trainrig.models.feedforward import SwiGLU
from trainrig.models.norm import RMSNorm
from trainrig.models.output import ModelOutput
from trainrig.models.positions import Rotation

# Projections that add to the residual stream, one of each a layer.
RESIDUAL = ("attention.output.weight", "feedforward.down.weight")


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
