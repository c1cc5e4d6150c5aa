"""The norm of a sharded gradient, the same bits however it is sharded."""

from collections.abc import Sequence, Set

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from trainrig.parallel.fsdp import local_slice
from trainrig.parallel.mesh import WorkerMesh

# Of a gradient at once: 2 MiB of float64 stay in a core's cache. An accelerator is rather asked for
# few large things: half a GiB, for as short as one parameter takes.
CHUNK_ELEMENTS = {"cpu": 2**18}
ELSEWHERE = 2**26


def exact_norm(
    parameters: Sequence[nn.Parameter], mesh: WorkerMesh, alike: Set[int] = frozenset()
) -> float:
    """The norm of the gradients of all `parameters`, each sliced along dim 0 over the `slices` of
    `mesh`, or, of experts that are divided, over its ranks in another order. Of those whose `id` is
    in `alike` all ranks that share layers have the same; of others each has a part, whose rows
    count by themselves.

    A slice holds whole rows. The squares of a row are added in float64 in one order, which depends
    on its length alone; then every rank adds the rows' sums of all ranks in one order. Every rank
    must call it; it sends 8 bytes a row.
    """
    device, part = parameters[0].device, mesh.tensor
    own = sum(parameter.shape[0] for parameter in parameters)
    rows = torch.zeros(own * part.size, dtype=torch.float64, device=device)
    begin = own * part.rank
    for parameter in parameters:
        assert isinstance(parameter.grad, DTensor)
        local, first = local_slice(parameter.grad)
        if part.rank == 0 or id(parameter) not in alike:
            rows[begin + first[0] : begin + first[0] + local.shape[0]] = row_sums(local)
        begin += parameter.shape[0]
    if mesh.slices.size * part.size > 1:
        dist.all_reduce(rows)  # all but one of what is added in each place are zeros
    return float(rows.sum().sqrt())


def row_sums(gradient: Tensor) -> Tensor:
    """[R] sums of the squares of each row of `gradient` [R, …], float64.

    By halving, element by element: torch's own sums order a row by the shape of the whole.
    """
    if not len(gradient):
        return gradient.new_zeros(0, dtype=torch.float64)
    flat_RC = gradient.reshape(len(gradient), -1)
    at_once = CHUNK_ELEMENTS.get(gradient.device.type, ELSEWHERE)
    rows = max(1, at_once // flat_RC.shape[1])
    return torch.cat([_row_sums(rows_RC) for rows_RC in torch.split(flat_RC, rows)])


def _row_sums(rows_RC: Tensor) -> Tensor:
    squares_RC = rows_RC.double().square_()
    while (width := squares_RC.shape[1]) > 1:
        half = width // 2
        left, right = squares_RC[:, :half], squares_RC[:, half : 2 * half]
        if width % 2:
            left[:, :1].add_(squares_RC[:, -1:])
        squares_RC = left.add_(right)
    return squares_RC[:, 0]
