"""Training steps of other projects in plain torch: the peers of the benchmark table.

They are written here from the published models: nothing of theirs is imported, so torch alone is
enough to run them. Each has float32 masters under autocast, fused AdamW, clipping, and fused causal
attention.

Shapes: B rows, T positions, C channels, H heads, D channels of a head, V entries.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainrig.models.architecture.decoder_config import DecoderConfig


class LlamaLayer(nn.Module):
    """Layer with RMSNorm, rotary attention and SwiGLU (Touvron et al. 2023, arXiv:2302.13971)."""

    def __init__(self, channels: int, heads: int, between: int) -> None:
        super().__init__()
        self.heads = heads
        self.before = nn.RMSNorm(channels)
        self.after = nn.RMSNorm(channels)
        self.qkv = nn.Linear(channels, 3 * channels, bias=False)
        self.out = nn.Linear(channels, channels, bias=False)
        self.gate_up = nn.Linear(channels, 2 * between, bias=False)
        self.down = nn.Linear(between, channels, bias=False)

    def forward(self, x_BTC: Tensor, cos_TD: Tensor, sin_TD: Tensor) -> Tensor:
        """Return x_BTC after the layer."""
        q, k, v = _heads(self.qkv(self.before(x_BTC)), self.heads)
        q, k = (part * cos_TD + _turned(part) * sin_TD for part in (q, k))
        x_BTC = x_BTC + self.out(_attend(q.type_as(v), k.type_as(v), v))
        gate, up = self.gate_up(self.after(x_BTC)).chunk(2, -1)
        return x_BTC + self.down(functional.silu(gate) * up)


class Llama(nn.Module):
    """Llama of the sizes of `config`."""

    def __init__(self, config: DecoderConfig, length: int) -> None:
        super().__init__()
        shape = config.shape
        between = config.shape.feedforward_channels
        layers = (LlamaLayer(shape.channels, shape.heads, between) for _ in range(config.layers))
        self.embedding = nn.Embedding(config.outputs, shape.channels)
        self.layers = nn.ModuleList(layers)
        self.norm = nn.RMSNorm(shape.channels)
        size = shape.head_channels
        rate_D = 1e4 ** (-torch.arange(0, size, 2) / size)
        angle_TD = torch.outer(torch.arange(length), rate_D).repeat(1, 2)
        self.register_buffer("cos", angle_TD.cos())
        self.register_buffer("sin", angle_TD.sin())

    def forward(self, ids_BT: Tensor) -> Tensor:
        """Return logits [B, T, V]."""
        x_BTC = self.embedding(ids_BT)
        for layer in self.layers:
            x_BTC = layer(x_BTC, self.cos, self.sin)
        return functional.linear(self.norm(x_BTC), self.embedding.weight)


class GptLayer(nn.Module):
    """Layer with LayerNorm, attention and GELU: nanoGPT's block, without biases and dropout."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before = nn.LayerNorm(channels, bias=False)
        self.after = nn.LayerNorm(channels, bias=False)
        self.qkv = nn.Linear(channels, 3 * channels, bias=False)
        self.out = nn.Linear(channels, channels, bias=False)
        self.up = nn.Linear(channels, 4 * channels, bias=False)
        self.down = nn.Linear(4 * channels, channels, bias=False)

    def forward(self, x_BTC: Tensor) -> Tensor:
        """Return x_BTC after the layer."""
        x_BTC = x_BTC + self.out(_attend(*_heads(self.qkv(self.before(x_BTC)), self.heads)))
        return x_BTC + self.down(functional.gelu(self.up(self.after(x_BTC))))


class NanoGpt(nn.Module):
    """GPT-2 as nanoGPT trains it: learned positions, the head tied to the embedding."""

    def __init__(self, config: DecoderConfig, length: int) -> None:
        super().__init__()
        shape = config.shape
        self.embedding = nn.Embedding(config.outputs, shape.channels)
        self.positions = nn.Embedding(length, shape.channels)
        layers = (GptLayer(shape.channels, shape.heads) for _ in range(config.layers))
        self.layers = nn.ModuleList(layers)
        self.norm = nn.LayerNorm(shape.channels, bias=False)

    def forward(self, ids_BT: Tensor) -> Tensor:
        """Return logits [B, T, V]."""
        x_BTC = self.embedding(ids_BT) + self.positions.weight[: ids_BT.shape[1]]
        for layer in self.layers:
            x_BTC = layer(x_BTC)
        return functional.linear(self.norm(x_BTC), self.embedding.weight)


def _heads(x_BTC: Tensor, heads: int) -> tuple[Tensor, ...]:
    rows, length, wide = x_BTC.shape
    split = x_BTC.view(rows, length, 3, heads, wide // 3 // heads)
    return split.permute(2, 0, 3, 1, 4).unbind(0)


def _turned(x_BHTD: Tensor) -> Tensor:
    first, second = x_BHTD.chunk(2, -1)
    return torch.cat((-second, first), -1)


def _attend(q_BHTD: Tensor, k_BHTD: Tensor, v_BHTD: Tensor) -> Tensor:
    x_BHTD = functional.scaled_dot_product_attention(q_BHTD, k_BHTD, v_BHTD, is_causal=True)
    return x_BHTD.transpose(1, 2).flatten(2)


PEERS: dict[str, type[Llama] | type[NanoGpt]] = {"llama": Llama, "nanogpt": NanoGpt}


class PeerLoop:
    """A plain training loop around one of PEERS, which steps on micro-batches of token ids."""

    def __init__(
        self, kind: str, config: DecoderConfig, length: int, device: torch.device, compiled: bool
    ) -> None:
        torch.manual_seed(0)
        with device:
            self.model: nn.Module = PEERS[kind](config, length)
        for parameter in self.model.parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=0.02)
        self.device = device
        self._run: Callable[[Tensor], Tensor] = (
            torch.compile(self.model) if compiled else self.model
        )
        self._optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True
        )

    def step(self, batches: list[tuple[Tensor, Tensor]]) -> None:
        """Make one update on all of `batches`, each of ids and targets [B, T]."""
        narrow = self.device.type == "cuda"
        for ids_BT, targets_BT in batches:
            with torch.autocast(self.device.type, torch.bfloat16, enabled=narrow):
                logits_BTV = self._run(ids_BT)
                loss = functional.cross_entropy(logits_BTV.flatten(0, 1), targets_BT.flatten())
            (loss / len(batches)).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
