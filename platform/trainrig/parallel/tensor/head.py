"""Cross-entropy with the vocabulary divided over ranks.

For each target the ranks exchange four numbers: the largest logit, and three sums over all entries.
The logits stay where they are.

Shapes: K targets, R of those in a block, C channels, V vocabulary entries of this rank.
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from trainrig.models.output import Head
from trainrig.objectives.chunked_head import Extras, LogitTransform, put_back


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
        """Raise NotImplementedError: no rank has the logits of all entries."""
        raise NotImplementedError("the logits of all entries are on no rank")

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
