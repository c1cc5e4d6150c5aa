"""The norm of a sharded gradient, the same bits however it is sharded."""

import itertools
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Self

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainrig.hardware import runs_kernels
from trainrig.parallel.fsdp import find_local_slice
from trainrig.parallel.mesh import WorkerMesh

# Of a gradient at once: 2 MiB of float64 stay in a core's cache. An accelerator is rather asked for
# few large things: half a GiB, for as short as one parameter takes.
CHUNK_ELEMENTS = {"cpu": 2**18}
ELSEWHERE = 2**26
LONGEST = 2**15  # numbers of a row that one program of a GPU's kernel sums, unless they are odd


@dataclass(frozen=True)
class RowPlaces:
    """Where the rows of a rank's parameters are among those of a model of which it has a part."""

    firsts: Sequence[int | None]  # of each parameter, in order; None: another stage counts it
    rows: int  # of the whole model

    @classmethod
    def of_all(cls, parameters: Sequence[nn.Parameter]) -> Self:
        """Of a rank that has them all."""
        ends = list(itertools.accumulate((len(each) for each in parameters), initial=0))
        return cls(ends[:-1], ends[-1])


def compute_exact_norm(
    parameters: Sequence[nn.Parameter],
    mesh: WorkerMesh,
    alike: Set[int] = frozenset(),
    places: RowPlaces | None = None,
) -> Tensor:
    """[] the norm, float64, of the gradients of all `parameters`, each sliced along dim 0 over the
    `slices` of `mesh`, or, of experts that are divided, over its ranks in another order; copies are
    alike. Of those whose `id` is in `alike` all ranks that share layers have the same; of others
    each has a part, whose rows count by themselves. `places`: of their rows; None: no stage has
    others.

    A slice holds whole rows. The squares of a row are added in float64 in one order, which depends
    on its length alone; then every rank adds the rows' sums of all ranks in one order. Every rank
    must call it; it sends 8 bytes a row.
    """
    device, part = parameters[0].device, mesh.tensor
    own = places or RowPlaces.of_all(parameters)
    gradients: list[Tensor] = []
    begins: list[int] = []
    rows = torch.zeros(own.rows * part.size, dtype=torch.float64, device=device)
    divided = mesh.slices.size * part.size * mesh.pipeline.size > 1
    for parameter, place in zip(parameters, own.firsts, strict=True):
        assert parameter.grad is not None
        if place is None or (part.rank > 0 and id(parameter) in alike):
            continue
        if divided and mesh.copies.rank > 0:  # the first copy says it
            continue
        local, first = find_local_slice(parameter.grad)
        gradients.append(local)
        begins.append(own.rows * part.rank + place + first[0])
    sum_all_rows(gradients, begins, rows)
    if divided:
        dist.all_reduce(rows)  # all but one of what is added in each place are zeros
    return rows.sum().sqrt()


def sum_rows(gradient: Tensor) -> Tensor:
    """[R] sums of the squares of each row of `gradient` [R, …], float64: see `sum_all_rows`."""
    sums_R = torch.empty(len(gradient), dtype=torch.float64, device=gradient.device)
    sum_all_rows([gradient], [0], sums_R)
    return sums_R


def sum_all_rows(gradients: Sequence[Tensor], firsts: Sequence[int], sums: Tensor) -> None:
    """Write the sums of the squares of each row of all `gradients` [R, …] into `sums`, float64,
    from place `firsts` of each on.

    Rows by halving, element by element: torch's own sums order a row by the shape of the whole. On
    a GPU one kernel sums them, in an order of its own, of long rows half by half of the half, for
    as long as they can be halved.
    """
    rows_of_each = [each.reshape(len(each), -1) for each in gradients if len(each)]
    firsts = [first for first, each in zip(firsts, gradients, strict=True) if len(each)]
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
    from trainrig.parallel.gradients import triton_kernels

    segments = [_count_segments(each.shape[1]) for each in rows_of_each]
    # The sums of segments go behind those of rows, until they are halved.
    places, wanted = list(firsts), len(sums)
    for number, (each, count) in enumerate(zip(rows_of_each, segments, strict=True)):
        if count > 1:
            places[number], wanted = wanted, wanted + len(each) * count
    found = sums if wanted == len(sums) else sums.new_empty(wanted)
    cut = [each.reshape(len(each) * n, -1) for each, n in zip(rows_of_each, segments, strict=True)]
    triton_kernels.sum_rows([each.float().contiguous() for each in cut], places, found)
    if found is sums:
        return
    for each, count, first, place in zip(rows_of_each, segments, firsts, places, strict=True):
        parts = found[place : place + len(each) * count]
        sums[first : first + len(each)] = _halve(parts.view(-1, count))


def _count_segments(width: int) -> int:
    """Into how many equal parts a row of that width is cut for one program each."""
    segments = 1
    while width > LONGEST and width % 2 == 0:
        width, segments = width // 2, segments * 2
    return segments


def _halve(rows_RC: Tensor) -> Tensor:
    """[R] the sums of rows, of which nothing is left."""
    while (width := rows_RC.shape[1]) > 1:
        half = width // 2
        left, right = rows_RC[:, :half], rows_RC[:, half : 2 * half]
        if width % 2:
            left[:, :1].add_(rows_RC[:, -1:])
        rows_RC = left.add_(right)
    return rows_RC[:, 0]
