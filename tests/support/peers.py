"""Plain models to compare with trainrig's: a handwritten GPT and Transformers' Llama.

Shapes: B sequences, T positions, C channels, V entries of the vocabulary.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from trainrig.models.decoder import DecoderConfig

# Settings that turn a trainrig decoder into the GPT below.
NANOGPT = {
    "norm": {"kind": "LayerNorm", "bias": False},
    "position_embedding": {"kind": "LearnedPositions"},
    "feedforward": {"kind": "GELU", "tanh": False},
}


class GPTBlock(nn.Module):
    """GPT-2's layer, with one product for queries, keys and values, and torch's fused kernels."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first_norm = nn.LayerNorm(channels, bias=False)
        self.query_key_value = nn.Linear(channels, 3 * channels, bias=False)
        self.output = nn.Linear(channels, channels, bias=False)
        self.second_norm = nn.LayerNorm(channels, bias=False)
        self.up = nn.Linear(channels, 4 * channels, bias=False)
        self.down = nn.Linear(4 * channels, channels, bias=False)

    def forward(self, x_BTC: Tensor) -> Tensor:
        """Map the stream [B, T, C] to the stream after this layer [B, T, C]."""
        batch, length, channels = x_BTC.shape
        parts = self.query_key_value(self.first_norm(x_BTC)).split(channels, dim=2)
        query, key, value = (
            part.view(batch, length, self.heads, -1).transpose(1, 2) for part in parts
        )
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x_BTC = x_BTC + self.output(seen.transpose(1, 2).reshape(batch, length, channels))
        return x_BTC + self.down(F.gelu(self.up(self.second_norm(x_BTC))))


class GPT(nn.Module):
    """A GPT with as many layers, channels and heads as a trainrig decoder.

    It does as many products, too, if the decoder's feed-forward network is 8/3 of its channels
    wide.
    """

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        shape = config.shape
        self.embedding = nn.Embedding(shape.vocabulary, shape.channels)
        self.positions = nn.Embedding(config.positions, shape.channels)
        blocks = (GPTBlock(shape.channels, shape.heads) for _ in range(shape.layers))
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.LayerNorm(shape.channels, bias=False)
        self.head = nn.Linear(shape.channels, shape.vocabulary, bias=False)
        self.head.weight = self.embedding.weight
        nn.init.normal_(self.embedding.weight, std=0.02)

    def forward(self, ids_BT: Tensor) -> Tensor:
        """Return logits [B, T, V]."""
        x_BTC = self.embedding(ids_BT) + self.positions(torch.arange(ids_BT.shape[1]))
        return self.head(self.norm(self.blocks(x_BTC)))


class Llama(nn.Module):
    """Transformers' Llama with the sizes of a trainrig decoder."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        shape = config.shape
        settings = LlamaConfig(  # type: ignore[call-arg]
            vocab_size=shape.vocabulary,
            hidden_size=shape.channels,
            intermediate_size=shape.feedforward_channels,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.kv_heads,
            max_position_embeddings=config.positions,
            tie_word_embeddings=True,
            attn_implementation="sdpa",
        )
        self.whole = LlamaForCausalLM(settings)

    def forward(self, ids_BT: Tensor) -> Tensor:
        """Return logits [B, T, V]."""
        return self.whole(ids_BT).logits
