"""Micro-batches whose rows are split over ranks of a context axis, or divided over an expert axis.

Sums over those ranks are here, too.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from trainrig.objectives.objective_interface import DeviceBatch, RowParts
from trainrig.parallel.axes.context_parts import gather_parts, gather_shared, take_part
from trainrig.parallel.mesh import Axis, WorkerMesh
from trainrig.tokens.batches import IDS, IGNORABLE, IGNORE, POSITIONS


@dataclass(frozen=True)
class RowSplit:
    """Division of a micro-batch's rows over ranks, and this rank's part of it."""

    over: Axis = field(default_factory=Axis)  # ranks that share the rows
    # Ranks that share layers and compute the same results: only the first one counts.
    alike: Axis = field(default_factory=Axis)

    def take_part(self, batch: DeviceBatch) -> DeviceBatch:
        """Return this rank's positions of all rows of `batch`."""
        if self.over.group is None:
            return batch
        arrays = self._fill_up(batch.arrays)
        shape_BT = next(array.shape[:2] for array in arrays.values() if array.ndim > 1)
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
        """Return `arrays` padded to a width that all ranks can divide into equal parts.

        The ranks that share layers must get equally many positions too. Rows of conversations and
        of answers may have any width.
        """
        widths = {array.shape[1] for array in arrays.values() if array.ndim > 1}
        width = max(widths) + -max(widths) % (2 * self.over.size * self.alike.size)
        if widths == {width}:
            return arrays
        return {
            name: F.pad(
                array, (0, width - array.shape[1]), value=IGNORE if name in IGNORABLE else 0
            )
            if array.ndim > 1
            else array
            for name, array in arrays.items()
        }

    def add(self, table: Tensor) -> None:
        """Replace `table` by its sum over the ranks that share rows. Collective.

        The tables are added in the order of ranks. The sum is on the first rank of a replica. The
        other ranks get zeros.
        """
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


class RowDivision(RowSplit):
    """Division of a micro-batch into whole rows: neighbouring rows, in the order of ranks."""

    def take_part(self, batch: DeviceBatch) -> DeviceBatch:
        """Return this rank's rows of `batch`: equally many on each rank, or nearly."""
        rows = len(batch.samples_B)
        rank = self.over.rank
        ranks = self.over.size
        own = slice(rows * rank // ranks, rows * (rank + 1) // ranks)
        return replace(
            batch,
            arrays={name: array[own] for name, array in batch.arrays.items()},
            samples_B=batch.samples_B[own],
            sources_B=batch.sources_B[own],
        )


def find_row_split(mesh: WorkerMesh) -> RowSplit:
    """Return which part of its replica's micro-batches this rank of `mesh` has."""
    kind = RowDivision if mesh.expert.group else RowSplit
    return kind(mesh.parts, mesh.tensor)
