"""Small parts of layers: embedding, norm, dense feed-forward network, rotary positions, ALiBi.

The embedding accumulates its gradients in float32.

Shapes: B batch, T positions, C channels of the residual stream, F channels of the hidden layer, O
outputs, V vocabulary entries, H heads, D channels of one head, R rotated ones of them, [...] any
dims.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from trainrig.models.architecture import layer_settings
from trainrig.models.architecture.shapes import FeedForwardShape, NormShape, ProjectionShape


class Embedding(nn.Embedding):
    """Token embedding `weight` [V, C] whose gradients are accumulated in float32.

    torch accumulates the gradients of a row in the dtype of the weight: on a CPU always, and on a
    GPU for few ids. A bfloat16 sum stops growing once it is 256 times the addend, and frequent
    tokens appear that often in one batch.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Return the embedding vectors [..., C] of token ids [...]."""
        if self.weight.dtype == torch.float32:
            return F.embedding(input, self.weight)
        rows: Tensor = _Lookup.apply(self.weight, input)  # type: ignore[no-untyped-call]
        return rows


class _Lookup(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight_VC: Tensor, ids: Tensor) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.entries = weight_VC.shape[0]
        return F.embedding(ids, weight_VC)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (ids,) = ctx.saved_tensors
        return add_gradients(gradient, ids, ctx.entries), None


def add_gradients(gradient: Tensor, ids: Tensor, entries: int) -> Tensor:
    """Return the sum of `gradient` [..., C] for each of `entries` ids, [V, C].

    The sum is taken in float32 and rounded once.
    """
    # On a GPU `index_add_` adds in no fixed order; this kernel sorts by id first.
    if gradient.is_cuda:
        add: Any = torch.ops.aten.embedding_dense_backward
        total_VC: Tensor = add(gradient.float(), ids, entries, -1, False)
        return total_VC.to(gradient.dtype)
    channels = gradient.shape[-1]
    total_VC = torch.zeros(entries, channels, dtype=torch.float32, device=gradient.device)
    total_VC.index_add_(0, ids.reshape(-1), gradient.reshape(-1, channels).float())
    return total_VC.to(gradient.dtype)


class Norm(nn.Module):
    """Root-mean-square or layer norm, as `settings` choose, with a gain and perhaps a bias."""

    bias: nn.Parameter | None

    def __init__(self, shape: NormShape, settings: layer_settings.Normalisation) -> None:
        super().__init__()
        self.settings = settings
        self.weight = nn.Parameter(torch.ones(shape.channels))
        self.bias = nn.Parameter(torch.zeros(shape.channels)) if shape.bias else None

    def forward(self, x_C: Tensor) -> Tensor:
        """Return `x_C` [..., C] normalised, in its own dtype; the mean is computed in float32."""
        return self.apply_gain(x_C, self.weight, self.bias)

    def apply_gain(self, x_C: Tensor, weight_C: Tensor, bias_C: Tensor | None) -> Tensor:
        """Return `x_C` [..., C] normalised with the given gain and bias."""
        # torch has no fused kernel for a weight in another dtype than the input, and would warn.
        weight_C = weight_C.to(x_C.dtype)
        size = (x_C.shape[-1],)
        if isinstance(self.settings, layer_settings.LayerNorm):
            bias_C = None if bias_C is None else bias_C.to(x_C.dtype)
            return F.layer_norm(x_C, size, weight_C, bias_C, self.settings.epsilon)
        if self.settings.unit_offset:
            weight_C = 1 + weight_C
        return F.rms_norm(x_C, size, weight_C, self.settings.epsilon)


# Multiplies the same tokens by several matrices; returns the products in the matrices' order.
Multiply = Callable[[Tensor, Sequence[nn.Module]], Sequence[Tensor]]


def multiply_each(x_C: Tensor, projections: Sequence[nn.Module]) -> Sequence[Tensor]:
    """Return `x_C` [..., C] through each of `projections`, one after the other, [..., O] each."""
    return [projection(x_C) for projection in projections]


class DenseFeedForward(nn.Module):
    """Feed-forward network with one hidden layer, whose activation `network` chooses."""

    gate: nn.Linear | None

    def __init__(self, shape: FeedForwardShape, network: layer_settings.Network) -> None:
        super().__init__()
        self.network = network
        self.gate = None if shape.gate is None else build_projection(shape.gate)
        self.up = build_projection(shape.up)
        self.down = build_projection(shape.down)
        # This is an attribute so that it can be replaced, for example by `fuse_projections`.
        self.multiply: Multiply = multiply_each

    def forward(self, x_C: Tensor) -> Tensor:
        """Return the output [..., C] for `x_C` [..., C]."""
        if self.gate is None:
            (up_F,) = self.multiply(x_C, (self.up,))
            between_F = activate(self.network, up_F)
            del up_F
        else:
            gate_F, up_F = self.multiply(x_C, (self.gate, self.up))
            between_F = apply_gate(self.network, gate_F, up_F)
            del gate_F, up_F
        # The inputs of the activation are freed early: without a backward pass nothing else needs
        # them.
        changed_C: Tensor = self.down(between_F)
        return changed_C


def activate(network: layer_settings.Network, x_F: Tensor) -> Tensor:
    """Return `x_F` [..., F] through the activation of `network`, without the product of a gate."""
    if isinstance(network, layer_settings.ClampedSwiGLU):
        x_F = x_F.clamp(max=network.limit)
        return x_F * (network.alpha * x_F).sigmoid()
    if isinstance(network, layer_settings.SwiGLU):
        return F.silu(x_F)
    if isinstance(network, layer_settings.GEGLU | layer_settings.GELU):
        return F.gelu(x_F, approximate="tanh" if network.tanh else "none")
    return F.relu(x_F)


def apply_gate(network: layer_settings.Network, gate_F: Tensor, up_F: Tensor) -> Tensor:
    """Return `up_F` [..., F] times the activation of `gate_F`, as the gated `network` does."""
    if isinstance(network, layer_settings.ClampedSwiGLU):
        up_F = up_F.clamp(-network.limit, network.limit) + 1
    return activate(network, gate_F) * up_F


def build_projection(shape: ProjectionShape) -> nn.Linear:
    """Return a linear layer of that shape."""
    return nn.Linear(shape.inputs, shape.outputs, bias=shape.bias)


class Rotation:
    """Rotary position embedding of queries and keys (Su et al. 2021, arXiv:2104.09864).

    The product of a rotated query and a rotated key depends on their distance alone. Channel i of
    the first half is rotated together with channel i of the second half: the layout of Llama in
    Hugging Face, so its weights need no reordering. With a `rotated_share` below 1, the halves are
    those of the first R channels.

    The angles are kept in a plain object, not in a tensor argument of each layer, because FSDP
    casts tensor arguments to the layer's dtype and bfloat16 is too coarse for angles. They are
    computed in each forward pass because a buffer would not survive the meta device.
    """

    def __init__(self, positions: Tensor, head_channels: int, rope: layer_settings.Rope) -> None:
        """Compute the angles of integer `positions`: [T], or [B, T] where rows differ."""
        self.rotated = rope.count_rotated_channels(head_channels)
        rates, factor = compute_rotation_rates(rope, self.rotated, positions.device)
        angles = positions.float()[..., None] * rates
        if positions.dim() == 2:
            angles = angles[:, None]  # The same angles apply to all heads: [B, 1, T, R / 2].
        cosine = angles.cos()
        sine = angles.sin()
        if factor != 1:
            cosine = cosine * factor
            sine = sine * factor
        self.cosine_TR = torch.cat((cosine, cosine), dim=-1)
        self.sine_TR = torch.cat((-sine, sine), dim=-1)

    def __call__(self, x_BHTD: Tensor) -> Tensor:
        """Return `x_BHTD` rotated; computed in float32, returned in the dtype of `x_BHTD`."""
        if self.rotated == x_BHTD.shape[-1]:
            return self._turn(x_BHTD)
        turned = x_BHTD[..., : self.rotated]
        left = x_BHTD[..., self.rotated :]
        return torch.cat((self._turn(turned), left), dim=-1)

    def _turn(self, x_BHTR: Tensor) -> Tensor:
        first, second = x_BHTR.chunk(2, dim=-1)
        swapped_BHTR = torch.cat((second, first), dim=-1)
        turned_BHTR = x_BHTR * self.cosine_TR + swapped_BHTR * self.sine_TR
        return turned_BHTR.to(x_BHTR.dtype)


def compute_rotation_rates(
    rope: layer_settings.Rope, rotated: int, device: torch.device
) -> tuple[Tensor, float]:
    """Return radians per position for each channel pair, [R / 2], and a factor on queries and keys.

    The rates fall from 1 to about 1 / theta.
    """
    even = torch.arange(0, rotated, 2, device=device, dtype=torch.float32)
    theta = rope.theta
    scaling = rope.scaling
    if isinstance(scaling, layer_settings.NTKAware) and rotated > 2:
        theta *= scaling.factor ** (rotated / (rotated - 2))
    rates = 1.0 / theta ** (even / rotated)
    if isinstance(scaling, layer_settings.LinearInterpolation):
        return rates / scaling.factor, 1.0
    if isinstance(scaling, layer_settings.Llama3Scaling):
        return _scale_by_turns(rates, scaling), 1.0
    if isinstance(scaling, layer_settings.YaRN):
        usual = 0.1 * math.log(scaling.factor) + 1.0
        return _make_yarn_ramp(rates, rope.theta, scaling), scaling.attention_factor or usual
    return rates, 1.0


def _scale_by_turns(rates: Tensor, scaling: layer_settings.Llama3Scaling) -> Tensor:
    """Return `rates` scaled as in Llama 3.1: divided by the factor for pairs that turn slowly.

    Between `slow_turns` and `fast_turns` the result is interpolated linearly in the number of
    turns.
    """
    turns = scaling.original_positions * rates / (2 * math.pi)
    ramp = (turns - scaling.slow_turns) / (scaling.fast_turns - scaling.slow_turns)
    left_alone = ramp.clamp(0, 1)
    return (1 - left_alone) * rates / scaling.factor + left_alone * rates


def _make_yarn_ramp(rates: Tensor, theta: float, scaling: layer_settings.YaRN) -> Tensor:
    """Return `rates` scaled as in YaRN, by a linear ramp over the index of the channel pair.

    The ramp runs between the pairs that make `fast_turns` and `slow_turns` over the original
    length.
    """
    pairs = len(rates)

    def find_pair(turns: float) -> float:
        wavelength = scaling.original_positions / (turns * 2 * math.pi)
        return pairs * math.log(wavelength) / math.log(theta)

    begin = find_pair(scaling.fast_turns)
    end = find_pair(scaling.slow_turns)
    if scaling.whole_channels:
        begin = math.floor(begin)
        end = math.ceil(end)
    begin = max(begin, 0)
    end = min(end, 2 * pairs - 1)
    if begin == end:
        end += 0.001  # A tiny ramp avoids division by 0.
    number = torch.arange(pairs, device=rates.device, dtype=torch.float32)
    interpolated = ((number - begin) / (end - begin)).clamp(0, 1)
    return rates / scaling.factor * interpolated + rates * (1 - interpolated)


def compute_alibi_slopes(heads: int) -> list[float]:
    """Return how fast the logits of each head fall with distance.

    For n heads, n a power of two, the slopes are a geometric series from 2 ** (-8 / n). For other
    numbers they are the series of the next lower power, then every second slope of the next higher
    one (Press et al. 2022, arXiv:2108.12409, section 3).
    """
    power = 2 ** math.floor(math.log2(heads))
    series = [2 ** (-8 * (n + 1) / power) for n in range(power)]
    finer = [2 ** (-4 * (2 * n + 1) / power) for n in range(heads - power)]
    return series + finer
