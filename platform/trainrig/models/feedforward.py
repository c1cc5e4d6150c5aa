"""What a layer does to each token by itself.

Shapes: C channels of the stream, F channels between.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from trainrig.models.architecture.feedforward import GEGLU, GELU, Network, SwiGLU
from trainrig.models.architecture.shapes import FeedForwardShape, ProjectionShape


class DenseFeedForward(nn.Module):
    """Widens each token, bends it by the function that `network` chooses, and narrows it."""

    gate: nn.Linear | None

    def __init__(self, shape: FeedForwardShape, network: Network) -> None:
        super().__init__()
        self.network = network
        self.gate = None if shape.gate is None else build_projection(shape.gate)
        self.up = build_projection(shape.up)
        self.down = build_projection(shape.down)

    def forward(self, x_C: Tensor) -> Tensor:
        """[..., C] to [..., C]."""
        if self.gate is None:
            between_F = activate(self.network, self.up(x_C))
        else:
            between_F = activate(self.network, self.gate(x_C)) * self.up(x_C)
        changed_C: Tensor = self.down(between_F)
        return changed_C


def activate(network: Network, x_F: Tensor) -> Tensor:
    """[..., F] through the function of `network`, before it gates what it gates."""
    if isinstance(network, SwiGLU):
        return F.silu(x_F)
    if isinstance(network, GEGLU | GELU):
        return F.gelu(x_F, approximate="tanh" if network.tanh else "none")
    return F.relu(x_F)


def build_projection(shape: ProjectionShape) -> nn.Linear:
    """A linear map of that shape."""
    return nn.Linear(shape.inputs, shape.outputs, bias=shape.bias)
