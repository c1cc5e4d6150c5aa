"""What a layer does to each token by itself.

Shapes: C channels of the stream, F channels between.
"""

import torch.nn.functional as F
from torch import Tensor, nn


class SwiGLU(nn.Module):
    """A feed-forward network whose middle is gated by SiLU (Shazeer 2020, arXiv:2002.05202)."""

    def __init__(self, channels: int, between: int) -> None:
        super().__init__()
        self.gate = nn.Linear(channels, between, bias=False)
        self.up = nn.Linear(channels, between, bias=False)
        self.down = nn.Linear(between, channels, bias=False)

    def forward(self, x_C: Tensor) -> Tensor:
        """[..., C] to [..., C]."""
        between_F = F.silu(self.gate(x_C)) * self.up(x_C)
        changed_C: Tensor = self.down(between_F)
        return changed_C
