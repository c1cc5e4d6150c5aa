"""How a network knows where a token stands.

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
    """Turns queries and keys by an angle that grows with their position.

    Rotary embedding (Su et al. 2021, arXiv:2104.09864). The product of a turned query and a turned
    key depends on the distance between them alone. Channel i of the first half is turned together
    with channel i of the second half: the layout of Llama in Hugging Face, so its weights need no
    reordering here. With a share below 1, the halves are those of the first R channels.

    The table is a plain object rather than a tensor argument of each layer because FSDP casts
    tensor arguments to the layer's dtype, and an angle does not survive bfloat16; and it is made
    from the positions each time because a buffer would not survive the meta device.
    """

    def __init__(self, positions: Tensor, head_channels: int, rope: Rope) -> None:
        """`positions`: whole numbers, [T], or [B, T] where rows have positions of their own."""
        self.rotated = rope.count_rotated_channels(head_channels)
        rates, factor = compute_rotation_rates(rope, self.rotated, positions.device)
        angles = positions.float()[..., None] * rates
        if positions.dim() == 2:
            angles = angles[:, None]  # all heads of a row alike: [B, 1, T, R / 2]
        cosine, sine = angles.cos(), angles.sin()
        if factor != 1:
            cosine, sine = cosine * factor, sine * factor
        self.cosine_TR = torch.cat((cosine, cosine), dim=-1)
        self.sine_TR = torch.cat((-sine, sine), dim=-1)

    def __call__(self, x_BHTD: Tensor) -> Tensor:
        """`x_BHTD` turned; computed in float32, returned in the dtype of `x_BHTD`."""
        if self.rotated == x_BHTD.shape[-1]:
            return self._turn(x_BHTD)
        turned, left = x_BHTD[..., : self.rotated], x_BHTD[..., self.rotated :]
        return torch.cat((self._turn(turned), left), dim=-1)

    def _turn(self, x_BHTR: Tensor) -> Tensor:
        first, second = x_BHTR.chunk(2, dim=-1)
        swapped_BHTR = torch.cat((second, first), dim=-1)
        turned_BHTR = x_BHTR * self.cosine_TR + swapped_BHTR * self.sine_TR
        return turned_BHTR.to(x_BHTR.dtype)


def compute_rotation_rates(rope: Rope, rotated: int, device: torch.device) -> tuple[Tensor, float]:
    """Radians a position of each pair of channels, [R / 2], falling from 1 to about 1 / theta;
    and a factor on queries and keys."""
    even = torch.arange(0, rotated, 2, device=device, dtype=torch.float32)
    theta, scaling = rope.theta, rope.scaling
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
    """Between the two numbers of turns, interpolated the less the more turns there are."""
    turns = scaling.original_positions * rates / (2 * math.pi)
    ramp = (turns - scaling.slow_turns) / (scaling.fast_turns - scaling.slow_turns)
    left_alone = ramp.clamp(0, 1)
    return (1 - left_alone) * rates / scaling.factor + left_alone * rates


def _make_yarn_ramp(rates: Tensor, theta: float, scaling: YaRN) -> Tensor:
    """A ramp over the number of the pair, between those that make so many turns."""
    pairs = len(rates)

    def find_pair(turns: float) -> float:
        wavelength = scaling.original_positions / (turns * 2 * math.pi)
        return pairs * math.log(wavelength) / math.log(theta)

    begin, end = find_pair(scaling.fast_turns), find_pair(scaling.slow_turns)
    if scaling.whole_channels:
        begin, end = math.floor(begin), math.ceil(end)
    begin, end = max(begin, 0), min(end, 2 * pairs - 1)
    if begin == end:
        end += 0.001  # a step, no division by 0
    number = torch.arange(pairs, device=rates.device, dtype=torch.float32)
    interpolated = ((number - begin) / (end - begin)).clamp(0, 1)
    return rates / scaling.factor * interpolated + rates * (1 - interpolated)


def alibi_slopes(heads: int) -> list[float]:
    """How fast the logits of each head fall with distance (Press et al. 2022, arXiv:2108.12409,
    section 3): a geometric series from 2 ** (-8 / n) for n heads, n a power of two; of another
    number, the series of the next lower power, then every second one of the next higher."""
    power = 2 ** math.floor(math.log2(heads))
    series = [2 ** (-8 * (n + 1) / power) for n in range(power)]
    finer = [2 ** (-4 * (2 * n + 1) / power) for n in range(heads - power)]
    return series + finer
