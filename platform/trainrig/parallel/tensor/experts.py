"""Experts whose hidden channels are divided over the ranks of a tensor axis.

All ranks send a token to the same experts, and each computes a part of their products. The parts
are added once, together with those of the shared expert. All ranks compute the router alike.

Shapes: B rows, T positions, C channels, N tokens, A active experts of one, E experts, F hidden
channels.
"""

import torch.distributed as dist
from torch import Tensor

from trainrig.models.moe import ExpertFeedForward
from trainrig.parallel.tensor.collectives import add_up, copy_in
from trainrig.parallel.tensor.sequence import gather_apart, scatter_sum

# Dimension of the hidden channels in the matrices [E, F, C] and, for down, [E, C, F].
CHANNELS_BETWEEN = {"gate": 1, "up": 1, "down": 2}


def share_experts(layer: ExpertFeedForward, group: dist.ProcessGroup, sequence: bool) -> None:
    """Make `layer`, whose matrices were cut, add its outputs over the ranks of `group`.

    `sequence`: each rank has some positions of the hidden states between layers.
    """
    vars(layer)["forward"] = _SharedExperts(layer, group, sequence)


class _SharedExperts:
    """Replacement for the forward pass of one mixture-of-experts layer."""

    def __init__(self, layer: ExpertFeedForward, group: dist.ProcessGroup, sequence: bool) -> None:
        self._layer = layer
        self._group = group
        self._sequence = sequence

    def __call__(self, x_BTC: Tensor, text_BT: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the layer's output and router terms. See `ExpertFeedForward.forward`."""
        layer = self._layer
        group = self._group
        if self._sequence:
            alike_BTC, apart_BTC = gather_apart(x_BTC, group)
        else:
            alike_BTC = x_BTC
            apart_BTC = copy_in(x_BTC, group)
        routed = layer.route(alike_BTC.flatten(0, 1), text_BT)
        # Each rank multiplies its part of the experts' outputs by the weights, so it has a part of
        # the weights' gradient.
        routed = routed._replace(weights_NA=copy_in(routed.weights_NA, group))
        changed_NC, router = layer.change(apart_BTC.flatten(0, 1), routed)
        changed_BTC = changed_NC.view_as(apart_BTC)
        if self._sequence:
            return scatter_sum(changed_BTC, group), router
        return add_up(changed_BTC, group), router
