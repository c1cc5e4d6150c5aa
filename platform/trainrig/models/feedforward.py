"""Dense feed-forward networks.

Shapes: C channels of the residual stream, F channels of the hidden layer, O outputs.
"""

from collections.abc import Callable, Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from trainrig.models.architecture.feedforward import GEGLU, GELU, Network, SwiGLU
from trainrig.models.architecture.shapes import FeedForwardShape, ProjectionShape

# Multiplies the same tokens by several matrices; returns the products in the matrices' order.
Multiply = Callable[[Tensor, Sequence[nn.Module]], Sequence[Tensor]]


def multiply_each(x_C: Tensor, projections: Sequence[nn.Module]) -> Sequence[Tensor]:
    """Return `x_C` [..., C] through each of `projections`, one after the other, [..., O] each."""
    return [projection(x_C) for projection in projections]


class DenseFeedForward(nn.Module):
    """Feed-forward network with one hidden layer, whose activation `network` chooses."""

    gate: nn.Linear | None

    def __init__(self, shape: FeedForwardShape, network: Network) -> None:
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
            between_F = activate(self.network, gate_F) * up_F
            del gate_F, up_F
        # The inputs of the activation are freed early: without a backward pass nothing else needs
        # them.
        changed_C: Tensor = self.down(between_F)
        return changed_C


def activate(network: Network, x_F: Tensor) -> Tensor:
    """Return `x_F` [..., F] through the activation of `network`, without the product of a gate."""
    if isinstance(network, SwiGLU):
        return F.silu(x_F)
    if isinstance(network, GEGLU | GELU):
        return F.gelu(x_F, approximate="tanh" if network.tanh else "none")
    return F.relu(x_F)


def build_projection(shape: ProjectionShape) -> nn.Linear:
    """Return a linear layer of that shape."""
    return nn.Linear(shape.inputs, shape.outputs, bias=shape.bias)
