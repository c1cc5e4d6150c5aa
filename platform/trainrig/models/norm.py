"""Normalisation layers.

Shapes: C channels.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainrig.models.architecture.norms import LayerNorm, Normalisation
from trainrig.models.architecture.shapes import NormShape


class Norm(nn.Module):
    """Root-mean-square or layer norm, as `settings` choose, with a gain and perhaps a bias."""

    bias: nn.Parameter | None

    def __init__(self, shape: NormShape, settings: Normalisation) -> None:
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
        if isinstance(self.settings, LayerNorm):
            bias_C = None if bias_C is None else bias_C.to(x_C.dtype)
            return F.layer_norm(x_C, size, weight_C, bias_C, self.settings.epsilon)
        if self.settings.unit_offset:
            weight_C = 1 + weight_C
        return F.rms_norm(x_C, size, weight_C, self.settings.epsilon)
