"""Rotary position embedding and ALiBi slopes.

Shapes: B batch, H heads, T positions, D channels of one head, R rotated ones of them.
"""

import math

import torch
from torch import Tensor

from trainrig.models.architecture.positions import (
    LinearInterpolation,
    Llama3Scaling,
    NTKAware,
    Rope,
    YaRN,
)


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

    def __init__(self, positions: Tensor, head_channels: int, rope: Rope) -> None:
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


def compute_rotation_rates(rope: Rope, rotated: int, device: torch.device) -> tuple[Tensor, float]:
    """Return radians per position for each channel pair, [R / 2], and a factor on queries and keys.

    The rates fall from 1 to about 1 / theta.
    """
    even = torch.arange(0, rotated, 2, device=device, dtype=torch.float32)
    theta = rope.theta
    scaling = rope.scaling
    if isinstance(scaling, NTKAware) and rotated > 2:
        theta *= scaling.factor ** (rotated / (rotated - 2))
    rates = 1.0 / theta ** (even / rotated)
    if isinstance(scaling, LinearInterpolation):
        return rates / scaling.factor, 1.0
    if isinstance(scaling, Llama3Scaling):
        return _scale_by_turns(rates, scaling), 1.0
    if isinstance(scaling, YaRN):
        usual = 0.1 * math.log(scaling.factor) + 1.0
        return _make_yarn_ramp(rates, rope.theta, scaling), scaling.attention_factor or usual
    return rates, 1.0


def _scale_by_turns(rates: Tensor, scaling: Llama3Scaling) -> Tensor:
    """Return `rates` scaled as in Llama 3.1: divided by the factor for pairs that turn slowly.

    Between `slow_turns` and `fast_turns` the result is interpolated linearly in the number of
    turns.
    """
    turns = scaling.original_positions * rates / (2 * math.pi)
    ramp = (turns - scaling.slow_turns) / (scaling.fast_turns - scaling.slow_turns)
    left_alone = ramp.clamp(0, 1)
    return (1 - left_alone) * rates / scaling.factor + left_alone * rates


def _make_yarn_ramp(rates: Tensor, theta: float, scaling: YaRN) -> Tensor:
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
