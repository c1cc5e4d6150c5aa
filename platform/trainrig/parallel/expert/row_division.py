"""Micro-batches whose rows are divided over the ranks of an expert axis."""

from dataclasses import replace

from trainrig.objectives.objective_interface import DeviceBatch
from trainrig.parallel.context.row_split import RowSplit
from trainrig.parallel.mesh import WorkerMesh


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
