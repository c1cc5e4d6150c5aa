"""Marks of padding positions for models that would otherwise count them.

Shapes: B rows, T positions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainrig.objectives.contract import DeviceBatch
from trainrig.tokens.batches import IGNORE, TARGETS

if TYPE_CHECKING:  # run files are read without torch, which takes seconds to import
    from torch import Tensor, nn


def mark_text(model: nn.Module, batch: DeviceBatch) -> dict[str, Tensor]:
    """Return the argument `text_BT` for a mixture of experts, or no arguments for other models.

    Positions after the last target of a row count as padding, because nothing is learnt from them.
    Rows with a target at every position have no padding.
    """
    if batch.all_targets or not getattr(model, "counts_padding", False):
        return {}
    asked_BT = batch.arrays[TARGETS] != IGNORE
    return {"text_BT": asked_BT.flip(1).cumsum(1).flip(1) > 0}
