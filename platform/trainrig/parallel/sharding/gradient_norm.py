"""The norm of a sharded gradient, with the same bits for every sharding.

Shapes: R rows of a parameter, C elements of a row.
"""

import itertools
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Self

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainrig.hardware import runs_kernels
from trainrig.parallel.mesh import WorkerMesh
from trainrig.parallel.sharding.fsdp import find_local_slice

# Numbers of a gradient to process at once: 2 MiB of float64 stay in a core's cache. An accelerator
# prefers few large operations: half a GiB, allocated only while one parameter is processed.
CHUNK_ELEMENTS = {"cpu": 2**18}
ELSEWHERE = 2**26
LONGEST = 2**15  # longest row that one program of a GPU kernel sums, unless its length is odd


@dataclass(frozen=True)
class RowPlaces:
    """Positions of the rows of a rank's parameters among the rows of the whole model."""

    # first row of each parameter, in order; None: another stage counts it
    firsts: Sequence[int | None]
    rows: int  # number of rows of the whole model

    @classmethod
    def whole_model(cls, parameters: Sequence[nn.Parameter]) -> Self:
        """Return the positions for a rank that holds all parameters."""
        ends = list(itertools.accumulate((len(parameter) for parameter in parameters), initial=0))
        return cls(ends[:-1], ends[-1])


def compute_exact_norm(
    parameters: Sequence[nn.Parameter],
    mesh: WorkerMesh,
    alike: Set[int] = frozenset(),
    places: RowPlaces | None = None,
) -> Tensor:
    """Return the norm of the gradients of all `parameters`, a float64 scalar. Collective.

    Each gradient is sliced along dimension 0 over the `slices` of `mesh`; divided experts are
    sliced over the same ranks in another order; copies are identical.

    A slice holds whole rows. The squares of a row are added in float64 in an order that depends on
    the row's length alone. Then every rank adds the row sums of all ranks in one order. Sends 8
    bytes per row.

    Args:
        parameters: Parameters with gradients, in the same order on all ranks.
        mesh: The mesh of the run.
        alike: The `id` of each parameter that is the same on all ranks that share layers; of other
            parameters each rank has a part, whose rows count separately.
        places: Positions of the rows; None: this rank's stage is the whole model.
    """
    device = parameters[0].device
    part = mesh.tensor
    own = places or RowPlaces.whole_model(parameters)
    gradients: list[Tensor] = []
    begins: list[int] = []
    rows = torch.zeros(own.rows * part.size, dtype=torch.float64, device=device)
    divided = mesh.slices.size * part.size * mesh.pipeline.size > 1
    for parameter, place in zip(parameters, own.firsts, strict=True):
        assert parameter.grad is not None
        if place is None or (part.rank > 0 and id(parameter) in alike):
            continue
        if divided and mesh.copies.rank > 0:  # the first copy contributes the rows
            continue
        local, first = find_local_slice(parameter.grad)
        gradients.append(local)
        begins.append(own.rows * part.rank + place + first[0])
    sum_all_rows(gradients, begins, rows)
    if divided:
        dist.all_reduce(rows)  # all but one summand in each position are zero
    return rows.sum().sqrt()


def sum_rows(gradient: Tensor) -> Tensor:
    """Return the sums [R] of the squares of each row of `gradient` [R, …], in float64.

    The order of addition is that of `sum_all_rows`.
    """
    sums_R = torch.empty(len(gradient), dtype=torch.float64, device=gradient.device)
    sum_all_rows([gradient], [0], sums_R)
    return sums_R


def sum_all_rows(gradients: Sequence[Tensor], firsts: Sequence[int], sums: Tensor) -> None:
    """Write the sums of the squares of each row of all `gradients` [R, …] into the float64 `sums`.

    The rows of each gradient go to `sums` from its index in `firsts` on. On a CPU, rows are summed
    by halving, element by element: torch's own sums choose an order by the shape of the whole
    tensor. On a GPU one kernel sums them in an order of its own; the kernel sums segments of long
    rows, which are then halved.
    """
    rows_of_each = [gradient.reshape(len(gradient), -1) for gradient in gradients if len(gradient)]
    firsts = [first for first, gradient in zip(firsts, gradients, strict=True) if len(gradient)]
    if runs_kernels(sums.device):
        _sum_by_kernel(rows_of_each, firsts, sums)
        return
    for flat_RC, first in zip(rows_of_each, firsts, strict=True):
        at_once = CHUNK_ELEMENTS.get(flat_RC.device.type, ELSEWHERE)
        count = max(1, at_once // flat_RC.shape[1])
        for rows_RC in torch.split(flat_RC, count):
            sums[first : first + len(rows_RC)] = _halve(rows_RC.double().square_())
            first += len(rows_RC)


def _sum_by_kernel(rows_of_each: Sequence[Tensor], firsts: Sequence[int], sums: Tensor) -> None:
    from trainrig.parallel.sharding import gradient_kernels

    segments = [_count_segments(rows.shape[1]) for rows in rows_of_each]
    # The sums of segments are stored after the sums of rows until they are halved.
    places = list(firsts)
    wanted = len(sums)
    for number, (rows, count) in enumerate(zip(rows_of_each, segments, strict=True)):
        if count > 1:
            places[number] = wanted
            wanted = wanted + len(rows) * count
    found = sums if wanted == len(sums) else sums.new_empty(wanted)
    cut = [rows.reshape(len(rows) * n, -1) for rows, n in zip(rows_of_each, segments, strict=True)]
    gradient_kernels.sum_rows([rows.float().contiguous() for rows in cut], places, found)
    if found is sums:
        return
    for rows, count, first, place in zip(rows_of_each, segments, firsts, places, strict=True):
        parts = found[place : place + len(rows) * count]
        sums[first : first + len(rows)] = _halve(parts.view(-1, count))


def _count_segments(width: int) -> int:
    """Return the number of equal segments of a row of `width` numbers, one for each GPU program."""
    segments = 1
    while width > LONGEST and width % 2 == 0:
        width = width // 2
        segments = segments * 2
    return segments


def _halve(rows_RC: Tensor) -> Tensor:
    """Return the sums [R] of the rows by repeated halving; overwrites `rows_RC`."""
    while (width := rows_RC.shape[1]) > 1:
        half = width // 2
        left = rows_RC[:, :half]
        right = rows_RC[:, half : 2 * half]
        if width % 2:
            left[:, :1].add_(rows_RC[:, -1:])
        rows_RC = left.add_(right)
    return rows_RC[:, 0]
