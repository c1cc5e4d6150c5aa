"""Which places of a batch are padding, for models that would count it.

Shapes: B rows, T positions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainrig.objectives.contract import DeviceBatch
from trainrig.tokens.batches import IGNORE, TARGETS

if TYPE_CHECKING:  # run files are read without torch, which takes seconds to import
    from torch import Tensor, nn


def mark_text(model: nn.Module, batch: DeviceBatch) -> dict[str, Tensor]:
    """Return the argument `text_BT` of a mixture of experts, and no argument of another model.

    What follows the last target of a row is padding, or as good as that: nothing is learnt from it.
    Rows that have a target at every place have none.
    """
    if batch.all_targets or not getattr(model, "counts_padding", False):
        return {}
    asked_BT = batch.arrays[TARGETS] != IGNORE
    return {"text_BT": asked_BT.flip(1).cumsum(1).flip(1) > 0}
