"""Which rows of each tensor this rank holds, and which of them it writes."""

from collections import defaultdict
from collections.abc import Mapping

import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from trainrig.parallel.slices import local_slice


def find_held(tensor: Tensor) -> tuple[Tensor, int]:
    """The rows of `tensor` that this rank holds, not a copy, and the first of them.

    Dim 0 alone may be sharded, as FSDP does it.
    """
    local, first = local_slice(tensor)
    assert not any(first[1:]) and local.shape[1:] == tensor.shape[1:], (
        "checkpoints know tensors that are cut along their first dimension alone"
    )
    return local, first[0] if first else 0


def find_written(tensors: Mapping[str, Tensor]) -> dict[str, tuple[Tensor, int]]:
    """What this rank writes of `tensors`: its rows of the sharded ones, and of what several ranks
    hold alike a part as large as each other's, by bytes. All ranks together write all once."""
    loads: dict[int, list[int]] = defaultdict(list)  # by number of replicas: bytes each writes
    mine = {}
    for name in sorted(tensors):
        tensor = tensors[name]
        number, replicas = _replica(tensor)
        load = loads.setdefault(replicas, [0] * replicas)
        writer = load.index(min(load))
        load[writer] += tensor.nbytes  # of the whole tensor: the same to every rank
        local, first = find_held(tensor)
        if writer == number and (local.numel() or not isinstance(tensor, DTensor)):
            mine[name] = (local, first)
    return mine


def _replica(tensor: Tensor) -> tuple[int, int]:
    """Which one of the replicas of its rows this rank holds, and how many there are."""
    if not isinstance(tensor, DTensor):
        return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    number, replicas = 0, 1
    for axis, placement in enumerate(tensor.placements):
        if placement.is_replicate():
            size = tensor.device_mesh.size(axis)
            number, replicas = (
                number * size + tensor.device_mesh.get_local_rank(axis),
                replicas * size,
            )
    return number, replicas
