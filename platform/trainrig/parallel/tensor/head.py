"""Cross-entropy where each of some ranks has the logits of a part of the vocabulary.

What they send each other is four numbers a target: the largest logit, and sums over all entries;
the logits themselves stay where they are.

Shapes: K targets, R of those in a block, C channels, V entries that this rank has.
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from trainrig.models.output import Head
from trainrig.objectives.chunked_head import Bend, Extras, put_back


@dataclass(frozen=True)
class VocabularyPart:
    """Which entries of the vocabulary a rank has, and the ranks that have the others."""

    group: dist.ProcessGroup
    first: int
    entries: int  # of all ranks


class PartHead(Head):
    """A head of some entries, as `chunked_head.PartialHead`."""

    def __init__(self, whole: Head, part: VocabularyPart) -> None:
        """`whole`: what `part` is of, its weight and bias those of the part."""
        super().__init__(whole.weight_VC, whole.bias_V, whole.soft_cap, whole.multiplier)
        self.part = part

    def __call__(self, hidden: Tensor) -> Tensor:
        """Nothing: no rank has the logits of all entries."""
        raise NotImplementedError("the logits of all entries are on no rank")

    def make_row_losses(self, targets_K: Tensor, extras: Extras) -> "SplitCrossEntropy":
        """See PartialHead."""
        return SplitCrossEntropy(targets_K, Bend.of(self), extras, self.part)


@dataclass(frozen=True)
class SplitCrossEntropy:
    """Nats, z and uniform nats of each target, as `chunked_head.RowLosses`; the ranks call it
    together."""

    targets_K: Tensor
    bend: Bend
    extras: Extras
    part: VocabularyPart

    def replace_by_gradients(
        self, logits_RV: Tensor, rows: slice, counts_R: Tensor | None, parts_3R: Tensor
    ) -> None:
        """In float32. The gradient of a nat is the softmax, less one at the target, where it is
        among this rank's entries."""
        extras, part = self.extras, self.part
        x = logits_RV.float()  # float32 logits themselves, or a copy
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
