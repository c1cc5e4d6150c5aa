"""Rows that are split over the ranks of a context axis, and what those come to together."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from trainrig.objectives.contract import DeviceBatch
from trainrig.parallel.context.gathered import gather_parts
from trainrig.parallel.context.zigzag import part_of
from trainrig.parallel.mesh import Axis
from trainrig.tokens.batches import IDS, POSITIONS


@dataclass(frozen=True)
class RowSplit:
    """Which part of which rows this rank has."""

    over: Axis = field(default_factory=Axis)  # the ranks that share its rows
    # The ranks that share layers, and come to the same: the first alone counts.
    alike: Axis = field(default_factory=Axis)

    def part(self, batch: DeviceBatch) -> DeviceBatch:
        """This rank's places of all rows of `batch`, with their positions."""
        if self.over.group is None:
            return batch
        arrays: Mapping[str, Tensor] = batch.arrays
        shape_BT = arrays[IDS].shape
        if POSITIONS not in arrays:  # each row is one document
            places_T = torch.arange(shape_BT[1], device=arrays[IDS].device)
            arrays = {**arrays, POSITIONS: places_T.expand(shape_BT)}
        own = {
            name: part_of(array, self.over.rank, self.over.size, 1) if array.ndim > 1 else array
            for name, array in arrays.items()
        }
        return replace(batch, arrays=own)

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
