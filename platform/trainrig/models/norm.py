"""Keeping activations at one scale.

Shapes: C channels.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class RMSNorm(nn.Module):
    """Divides by the root mean square over channels (Zhang & Sennrich 2019, arXiv:1910.07467)."""

    def __init__(self, channels: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.epsilon = epsilon  # added to the mean square, so that zeros stay zeros

    def forward(self, x_C: Tensor) -> Tensor:
        """[..., C] to [..., C], in the dtype of `x_C`; the mean itself is taken in float32."""
        # torch has no fused kernel for a weight of another dtype, and warns that it has none.
        weight_C = self.weight.to(x_C.dtype)
        return F.rms_norm(x_C, (x_C.shape[-1],), weight_C, self.epsilon)
