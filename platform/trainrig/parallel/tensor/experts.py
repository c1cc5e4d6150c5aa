"""Experts of each of which every rank of a tensor axis has some of the channels between.

All ranks send a token to the same experts, of whose products each has a part; the parts are added
up once, with that of the network beside them. The router is computed alike on all.

Shapes: B rows, T positions, C channels, N tokens, A active experts of one, E experts, F channels
between.
"""

import torch.distributed as dist
from torch import Tensor

from trainrig.models.moe import ExpertFeedForward
from trainrig.parallel.tensor.collectives import add_up, copy_in
from trainrig.parallel.tensor.sequence import gather_apart, scatter_sum

# Of the matrices [E, F, C] and, the last, [E, C, F].
CHANNELS_BETWEEN = {"gate": 1, "up": 1, "down": 2}


def share_experts(layer: ExpertFeedForward, group: dist.ProcessGroup, sequence: bool) -> None:
    """Have `layer`, whose matrices were cut, add up what ranks of `group` make of each token.
    `sequence`: each rank has some places of what flows between layers."""
    vars(layer)["forward"] = _SharedExperts(layer, group, sequence)


class _SharedExperts:
    """In place of the forward pass of one layer."""

    def __init__(self, layer: ExpertFeedForward, group: dist.ProcessGroup, sequence: bool) -> None:
        self._layer, self._group, self._sequence = layer, group, sequence

    def __call__(self, x_BTC: Tensor, text_BT: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """See `ExpertFeedForward.forward`."""
        layer, group = self._layer, self._group
        if self._sequence:
            alike_BTC, apart_BTC = gather_apart(x_BTC, group)
        else:
            alike_BTC, apart_BTC = x_BTC, copy_in(x_BTC, group)
        routed = layer.route(alike_BTC.flatten(0, 1), text_BT)
        # Each rank multiplies parts of what experts give by them, so each has a part of the
        # gradient.
        routed = routed._replace(weights_NA=copy_in(routed.weights_NA, group))
        changed_NC, router = layer.change(apart_BTC.flatten(0, 1), routed)
        changed_BTC = changed_NC.view_as(apart_BTC)
        if self._sequence:
            return scatter_sum(changed_BTC, group), router
        return add_up(changed_BTC, group), router
