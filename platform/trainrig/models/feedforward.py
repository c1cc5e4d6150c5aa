"""What a layer does to each token by itself.

Shapes: C channels of the stream, F channels between.
"""

from collections.abc import Callable, Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from trainrig.models.architecture.feedforward import GEGLU, GELU, Network, SwiGLU
from trainrig.models.architecture.shapes import FeedForwardShape, ProjectionShape

# What gives the products of the same tokens with several matrices, in their order.
Multiply = Callable[[Tensor, Sequence[nn.Module]], Sequence[Tensor]]


def multiply_each(x_C: Tensor, projections: Sequence[nn.Module]) -> Sequence[Tensor]:
    """[..., O] of [..., C] for each of `projections`, one after the other."""
    return [each(x_C) for each in projections]


class DenseFeedForward(nn.Module):
    """Widens each token, bends it by the function that `network` chooses, and narrows it."""

    gate: nn.Linear | None

    def __init__(self, shape: FeedForwardShape, network: Network) -> None:
        super().__init__()
        self.network = network
        self.gate = None if shape.gate is None else build_projection(shape.gate)
        self.up = build_projection(shape.up)
        self.down = build_projection(shape.down)
        # An attribute so that another way to multiply can take its place.
        self.multiply: Multiply = multiply_each

    def forward(self, x_C: Tensor) -> Tensor:
        """[..., C] to [..., C]."""
        if self.gate is None:
            (up_F,) = self.multiply(x_C, (self.up,))
            between_F = activate(self.network, up_F)
            del up_F
        else:
            gate_F, up_F = self.multiply(x_C, (self.gate, self.up))
            between_F = activate(self.network, gate_F) * up_F
            del gate_F, up_F
        # Without a backward pass nothing else needs what was widened.
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
