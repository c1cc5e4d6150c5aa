"""Parts of LoRA adapters, experts and the head on the ranks of a tensor axis.

*Adapters.* A layer that is cut by rows has some rows of B and all of A. One that is cut by
columns has some columns of A and all of B. Each rank multiplies its part of the layer, and
nothing more is sent than without an adapter. For the adapter matrix that all ranks hold, each
rank gets a part of the gradient, from its rows or columns of the other matrix; the parts are
added once a step. With DoRA, the norms of rows whose columns are divided are added in each
forward pass, one number a row. Shapes: O outputs, I inputs.

*Experts.* The hidden channels of experts are divided. All ranks send a token to the same experts,
and each computes a part of their products. The parts are added once, together with those of the
shared expert. All ranks compute the router alike.

*Cross-entropy.* The vocabulary is divided. For each target the ranks exchange four numbers: the
largest logit, and three sums over all entries. The logits stay where they are.

Shapes: B rows, T positions, C channels, N tokens, A active experts of one, E experts, F hidden
channels, K targets, R of those in a block, V vocabulary entries of this rank.
"""

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainrig.models.lora import LowRankLinear, is_adapter
from trainrig.models.moe import ExpertFeedForward
from trainrig.models.output import Head
from trainrig.objectives.chunked_head import Extras, LogitTransform, put_back
from trainrig.parallel.axes.tensor_collectives import add_up, copy_in, gather_apart, scatter_sum
from trainrig.parallel.mesh import Axis

# Parameters with a row for each output, and with a column for each input.
OF_ROWS = ("weight", "bias", "scales", "lora_b", "magnitude")
OF_COLUMNS = ("weight", "lora_a")
# held whole by all ranks where there are fewer key heads than ranks
HELD_ALIKE = ("attention.key", "attention.value")
# the shared expert, whose output is added to the experts' before the sum over ranks
ADDED_LATER = ".shared."


def share_columns(layer: nn.Module, axis: Axis) -> None:
    """Prepare the adapter of a `layer` with cut columns for operations that need whole rows."""
    if not isinstance(layer, LowRankLinear):
        return
    own = layer.weight.shape[1]
    layer.dropout.whole = own * axis.size
    layer.dropout.first = own * axis.rank
    assert axis.group is not None
    vars(layer)["compute_row_lengths"] = functools.partial(
        _sum_lengths, layer.compute_row_lengths, axis.group
    )


def _sum_lengths(row_lengths: Callable[[], Tensor], group: dist.ProcessGroup) -> Tensor:
    squares_O = row_lengths().square()
    dist.all_reduce(squares_O, group=group)
    return squares_O.sqrt()


def list_adapter_parts(cuts: Mapping[str, int | None], sequence: bool) -> Iterator[str]:
    """Yield the adapter parameters that all ranks hold, with a part of the gradient on each.

    `cuts`: the dimension along which each parameter is cut. `sequence`: each rank has some
    positions of the hidden states between layers.
    """
    layers = {name.rpartition(".")[0] for name, cut in cuts.items() if cut is not None}
    for name, cut in cuts.items():
        layer, _, last = name.rpartition(".")
        if cut is not None or not is_adapter(name):
            continue
        if layer not in layers and not layer.endswith(HELD_ALIKE):
            continue
        # After a sum over ranks, all ranks compute the same, for the positions that they have.
        after = last == "magnitude" and cuts[f"{layer}.lora_a"] is not None
        if not after or sequence or ADDED_LATER in name:
            yield name


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


@dataclass(frozen=True)
class VocabularyPart:
    """A rank's part of the vocabulary, and the ranks that have the others."""

    group: dist.ProcessGroup
    first: int
    entries: int  # number of entries on all ranks together


class PartHead(Head):
    """Head of some vocabulary entries, for `chunked_head.PartialHead`."""

    def __init__(self, whole: Head, part: VocabularyPart) -> None:
        """`whole`: the model's head, with the weight and bias of this `part` only."""
        super().__init__(whole.weight_VC, whole.bias_V, whole.soft_cap, whole.multiplier)
        self.part = part

    def __call__(self, hidden: Tensor) -> Tensor:
        """Raise AssertionError: no rank has the logits of all entries."""
        raise AssertionError("the logits of all entries are on no rank")

    def make_row_losses(self, targets_K: Tensor, extras: Extras) -> "SplitCrossEntropy":
        """Return the losses of rows with these targets. See `PartialHead`."""
        return SplitCrossEntropy(targets_K, LogitTransform.of(self), extras, self.part)


@dataclass(frozen=True)
class SplitCrossEntropy:
    """Cross-entropy, z-loss and uniform cross-entropy of each target, over a divided vocabulary.

    Implements `chunked_head.RowLosses`. Collective.
    """

    targets_K: Tensor
    bend: LogitTransform
    extras: Extras
    part: VocabularyPart

    def replace_by_gradients(
        self, logits_RV: Tensor, rows: slice, counts_R: Tensor | None, parts_3R: Tensor
    ) -> None:
        """Replace a block of logits by their gradients, and write the losses to `parts_3R`.

        In float32. The gradient of the cross-entropy is the softmax, minus one at the target, where
        the target is among this rank's entries.
        """
        extras = self.extras
        part = self.part
        x = logits_RV.float()  # a copy, unless logits are already float32
        left = self.bend.apply(x)
        places_R = self.targets_K[rows] - part.first
        here_R = (places_R >= 0) & (places_R < x.shape[1])
        places_R1 = places_R.masked_fill(~here_R, 0)[:, None]
        chosen_R = x.gather(1, places_R1).squeeze(1).masked_fill(~here_R, 0.0)
        sum_R = x.sum(1) if extras.uniform else torch.zeros_like(chosen_R)
        largest_R = x.amax(1)
        dist.all_reduce(largest_R, dist.ReduceOp.MAX, group=part.group)
        x.sub_(largest_R[:, None]).exp_()
        sums_3R = torch.stack((x.sum(1), chosen_R, sum_R))
        dist.all_reduce(sums_3R, group=part.group)
        total_R, chosen_R, sum_R = sums_3R
        normaliser_R = total_R.log() + largest_R
        parts_3R[0] = normaliser_R - chosen_R
        parts_3R[1] = normaliser_R.square()
        parts_3R[2] = normaliser_R - (sum_R / part.entries if extras.uniform else chosen_R)
        x.mul_(((1 + extras.uniform + 2 * extras.z * normaliser_R) / total_R)[:, None])
        x.scatter_add_(1, places_R1, -here_R.to(x.dtype)[:, None])
        if extras.uniform:
            x.sub_(extras.uniform / part.entries)
        put_back(x, logits_RV, left, counts_R)
