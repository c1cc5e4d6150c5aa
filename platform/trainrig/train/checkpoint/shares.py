"""Which rows of each tensor this rank holds, and which of them it writes."""

import math
from collections import defaultdict
from collections.abc import Mapping

import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor


def find_held(tensor: Tensor) -> tuple[Tensor, int]:
    """The rows of `tensor` that this rank holds, not a copy, and the first of them.

    Dim 0 alone may be sharded, as FSDP does it.
    """
    if not isinstance(tensor, DTensor):
        return tensor.detach(), 0
    local = tensor.to_local().detach()
    first, count = 0, tensor.shape[0] if tensor.ndim else 1
    for axis, placement in enumerate(tensor.placements):
        if placement.is_replicate():
            continue
        assert placement.is_shard(0), f"{placement}: checkpoints know no such sharding"
        mesh = tensor.device_mesh
        each = math.ceil(count / mesh.size(axis))  # as torch.chunk cuts
        skipped = min(count, mesh.get_local_rank(axis) * each)
        first, count = first + skipped, min(each, count - skipped)
    assert local.shape[:1] in {(count,), ()}, f"{tuple(local.shape)}: not the {count} rows expected"
    return local, first


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
