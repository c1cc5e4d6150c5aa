"""The norm of a sharded gradient, the same bits however it is sharded."""

import itertools
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Self

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainrig.parallel.fsdp import find_local_slice
from trainrig.parallel.mesh import WorkerMesh

# Of a gradient at once: 2 MiB of float64 stay in a core's cache. An accelerator is rather asked for
# few large things: half a GiB, for as short as one parameter takes.
CHUNK_ELEMENTS = {"cpu": 2**18}
ELSEWHERE = 2**26


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
    rows = torch.zeros(own.rows * part.size, dtype=torch.float64, device=device)
    divided = mesh.slices.size * part.size * mesh.pipeline.size > 1
    for parameter, place in zip(parameters, own.firsts, strict=True):
        assert parameter.grad is not None
        if place is None or (part.rank > 0 and id(parameter) in alike):
            continue
        if divided and mesh.copies.rank > 0:  # the first copy says it
            continue
        local, first = find_local_slice(parameter.grad)
        begin = own.rows * part.rank + place + first[0]
        rows[begin : begin + local.shape[0]] = sum_rows(local)
    if divided:
        dist.all_reduce(rows)  # all but one of what is added in each place are zeros
    return rows.sum().sqrt()


def sum_rows(gradient: Tensor) -> Tensor:
    """[R] sums of the squares of each row of `gradient` [R, …], float64.

    By halving, element by element: torch's own sums order a row by the shape of the whole.
    """
    if not len(gradient):
        return gradient.new_zeros(0, dtype=torch.float64)
    flat_RC = gradient.reshape(len(gradient), -1)
    at_once = CHUNK_ELEMENTS.get(gradient.device.type, ELSEWHERE)
    rows = max(1, at_once // flat_RC.shape[1])
    return torch.cat([_sum_rows(rows_RC) for rows_RC in torch.split(flat_RC, rows)])


def _sum_rows(rows_RC: Tensor) -> Tensor:
    squares_RC = rows_RC.double().square_()
    while (width := squares_RC.shape[1]) > 1:
        half = width // 2
        left, right = squares_RC[:, :half], squares_RC[:, half : 2 * half]
        if width % 2:
            left[:, :1].add_(squares_RC[:, -1:])
        squares_RC = left.add_(right)
    return squares_RC[:, 0]
