"""How a network knows where a token stands.

Shapes: B batch, H heads, T positions, D channels of one head.
"""

import torch
from torch import Tensor


class Rotation:
    """Turns queries and keys by an angle that grows with their position.

    Rotary embedding (Su et al. 2021, arXiv:2104.09864). The product of a turned query and a turned
    key depends on the distance between them alone. Channel i of the first half is turned together
    with channel i of the second half: the layout of Llama in Hugging Face, so its weights need no
    reordering here.

    The table is a plain object rather than a tensor argument of each layer because FSDP casts
    tensor arguments to the layer's dtype, and an angle does not survive bfloat16; and it is made
    from the positions each time because a buffer would not survive the meta device.
    """

    def __init__(self, positions: Tensor, head_channels: int, theta: float) -> None:
        """`positions`: whole numbers, [T], or [B, T] where rows have positions of their own.

        Rates fall from 1 to about 1/`theta` a position.
        """
        even = torch.arange(0, head_channels, 2, device=positions.device, dtype=torch.float32)
        rates = 1.0 / theta ** (even / head_channels)  # radians a position, one a pair
        angles = positions.float()[..., None] * rates
        if positions.dim() == 2:
            angles = angles[:, None]  # all heads of a row alike: [B, 1, T, D / 2]
        self.cosine_TD = torch.cat((angles.cos(), angles.cos()), dim=-1)
        self.sine_TD = torch.cat((-angles.sin(), angles.sin()), dim=-1)

    def __call__(self, x_BHTD: Tensor) -> Tensor:
        """`x_BHTD` turned; computed in float32, returned in the dtype of `x_BHTD`."""
        first, second = x_BHTD.chunk(2, dim=-1)
        swapped_BHTD = torch.cat((second, first), dim=-1)
        turned_BHTD = x_BHTD * self.cosine_TD + swapped_BHTD * self.sine_TD
        return turned_BHTD.to(x_BHTD.dtype)
