"""Rows that are split over the ranks of a context axis, and what those come to together."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from trainrig.objectives.contract import DeviceBatch
from trainrig.parallel.context.gathered import gather_parts
from trainrig.parallel.context.zigzag import take_part_of
from trainrig.parallel.mesh import Axis
from trainrig.tokens.batches import IDS, IGNORE, POSITIONS, TARGETS


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
        shape_BT = arrays[IDS].shape
        if POSITIONS not in arrays:  # each row is one document
            places_T = torch.arange(shape_BT[1], device=arrays[IDS].device)
            arrays = {**arrays, POSITIONS: places_T.expand(shape_BT)}
        own = {
            name: take_part_of(array, self.over.rank, self.over.size, 1)
            if array.ndim > 1
            else array
            for name, array in arrays.items()
        }
        return replace(batch, arrays=own)

    def _fill_up(self, arrays: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """`arrays` with rows that are cut into equal parts, of as many places for each of the ranks
        that share layers: rows of conversations may be of any width."""
        added = -arrays[IDS].shape[1] % (2 * self.over.size * self.alike.size)
        if not added:
            return arrays
        return {
            name: F.pad(each, (0, added), value=IGNORE if name == TARGETS else 0)
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
