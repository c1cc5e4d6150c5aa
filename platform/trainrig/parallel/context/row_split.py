"""Rows that are split over the ranks of a context axis, and what those come to together."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from trainrig.objectives.contract import DeviceBatch, RowParts
from trainrig.parallel.context.gathered import gather_parts, gather_shared
from trainrig.parallel.context.zigzag import take_part
from trainrig.parallel.mesh import Axis
from trainrig.tokens.batches import IDS, IGNORABLE, IGNORE, POSITIONS


@dataclass(frozen=True)
class RowSplit:
    """Which part of which rows this rank has."""

    over: Axis = field(default_factory=Axis)  # the ranks that share its rows
    # The ranks that share layers, and come to the same: the first alone counts.
    alike: Axis = field(default_factory=Axis)

    def take_part(self, batch: DeviceBatch) -> DeviceBatch:
        """This rank's places of all rows of `batch`, with their positions."""
        if self.over.group is None:
            return batch
        arrays = self._fill_up(batch.arrays)
        shape_BT = next(each.shape[:2] for each in arrays.values() if each.ndim > 1)
        places_BT = torch.arange(shape_BT[1], device=batch.samples_B.device).expand(shape_BT)
        if IDS in arrays and POSITIONS not in arrays:  # each row is one document
            arrays = {**arrays, POSITIONS: places_BT}
        own = {
            name: self._cut_own(array) if array.ndim > 1 else array
            for name, array in arrays.items()
        }
        gather = functools.partial(gather_shared, group=self.over.group)
        return replace(batch, arrays=own, parts=RowParts(self._cut_own(places_BT), gather))

    def _cut_own(self, array_BT: Tensor) -> Tensor:
        return take_part(array_BT, self.over.rank, self.over.size, 1)

    def _fill_up(self, arrays: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """`arrays` with rows that are cut into equal parts, of as many places for each of the ranks
        that share layers: rows of conversations and of answers may be of any width."""
        widths = {each.shape[1] for each in arrays.values() if each.ndim > 1}
        width = max(widths) + -max(widths) % (2 * self.over.size * self.alike.size)
        if widths == {width}:
            return arrays
        return {
            name: F.pad(each, (0, width - each.shape[1]), value=IGNORE if name in IGNORABLE else 0)
            if each.ndim > 1
            else each
            for name, each in arrays.items()
        }

    def add(self, table: Tensor) -> None:
        """Make of `table` its sum over the ranks that share rows, added in their order: on the
        first rank of a replica, zeros on its others. Collective."""
        if self.over.group is self.alike.group is None or not table.numel():
            return
        total = table
        if self.over.group is not None:
            total, *others = gather_parts(table, self.over.group)
            for other in others:
                total = total + other
        if self.over.rank == self.alike.rank == 0:
            table.copy_(total)
        else:
            table.zero_()
