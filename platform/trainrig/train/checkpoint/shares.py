"""Which rows of each tensor this rank holds, and which of them it writes."""

from collections import defaultdict
from collections.abc import Mapping

import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import _StridedShard

from trainrig.parallel.fsdp import find_local_slice
from trainrig.parallel.mesh import WorkerMesh
from trainrig.train.checkpoint.index import IndexedTensor, compute_partitions
from trainrig.train.checkpoint.tensor_file import TYPE_NAMES


def find_held(tensor: Tensor) -> tuple[Tensor, int]:
    """The rows of `tensor` that this rank holds, not a copy, and the first of them.

    Dim 0 alone may be sharded, as FSDP does it.
    """
    local, first = find_local_slice(tensor)
    assert not any(first[1:]) and local.shape[1:] == tensor.shape[1:], (
        "checkpoints know tensors that are cut along their first dimension alone"
    )
    return local, first[0] if first else 0


def find_written(tensors: Mapping[str, Tensor], lead: int = 0) -> dict[str, tuple[Tensor, int]]:
    """What this rank writes of `tensors`: its rows of the sharded ones, of what replicas hold alike
    a part as large as each other's, by bytes, and rank `lead`, the first of those that hold them,
    what is not sharded at all (a few numbers, which rank 0 will read for all). All ranks together
    write all once."""
    mine = {}
    for name, writer in _assign_writers(tensors, lead).items():
        tensor = tensors[name]
        local, first = find_held(tensor)
        if writer == _find_replica(tensor)[0] and (
            local.numel() or not isinstance(tensor, DTensor)
        ):
            mine[name] = (local, first)
    return mine


def index_all(tensors: Mapping[str, Tensor], lead: int = 0) -> dict[str, IndexedTensor]:
    """Where the rows of `tensors` lie in the files that all ranks write; file 0 is rank 0's.

    Every rank knows it without asking another: it follows from how the tensors are cut.
    """
    writers = _assign_writers(tensors, lead)
    found = {}
    for name, tensor in tensors.items():
        ranks, parts = _find_ranks(tensor, writers[name])
        found[name] = IndexedTensor(
            type=TYPE_NAMES[tensor.dtype],
            shape=tuple(tensor.shape),
            partitions=compute_partitions(ranks, tensor.shape[0] if tensor.ndim else 1, parts),
        )
    return found


def index_stages(tensors: Mapping[str, Tensor], mesh: WorkerMesh) -> dict[str, IndexedTensor]:
    """As `index_all`, of the `tensors` of all stages of the pipeline of `mesh`, whose ranks hold
    some each and all call it."""
    mine, pipeline = index_all(tensors, mesh.lead), mesh.pipeline
    if pipeline.group is None:
        return mine
    found = [mine] * pipeline.size
    dist.all_gather_object(found, mine, group=pipeline.group)
    return {name: tensor for each in found for name, tensor in each.items()}


def _assign_writers(tensors: Mapping[str, Tensor], lead: int) -> dict[str, int]:
    """Which of the replicas of each of `tensors` writes it, by name in order."""
    loads: dict[int, list[int]] = defaultdict(list)  # by number of replicas: bytes each writes
    writers = {}
    for name in sorted(tensors):
        tensor = tensors[name]
        if not isinstance(tensor, DTensor):
            writers[name] = lead
            continue
        replicas = _find_replica(tensor)[1]
        load = loads.setdefault(replicas, [0] * replicas)
        writers[name] = load.index(min(load))
        load[writers[name]] += tensor.nbytes  # of the whole tensor: the same to every rank
    return writers


def _find_ranks(tensor: Tensor, replica: int) -> tuple[list[int], int]:
    """The ranks that hold the rows of a replica of `tensor`, in the order of rows, and in how many
    parts the rows are cut before each part is cut over its ranks."""
    if not isinstance(tensor, DTensor):
        return [replica], 1
    places: list[int | slice] = []
    sliced = 0  # axes
    for axis in reversed(range(tensor.device_mesh.ndim)):
        if tensor.placements[axis].is_replicate():
            replica, place = divmod(replica, tensor.device_mesh.size(axis))
            places.insert(0, place)
        else:
            places.insert(0, slice(None))
            sliced += 1
    ranks = tensor.device_mesh.mesh[tuple(places)]
    if sliced < 2:
        return ranks.flatten().tolist(), 1
    # Of experts that are divided, the last axis cuts first, and the one before it what is left; of
    # layers that are shared, the first does.
    if any(isinstance(each, _StridedShard) for each in tensor.placements):
        ranks = ranks.T
    return ranks.flatten().tolist(), ranks.shape[0]


def _find_replica(tensor: Tensor) -> tuple[int, int]:
    """Which one of the replicas of its rows this rank holds, and how many there are."""
    if not isinstance(tensor, DTensor):
        return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    number, replicas, place = 0, 1, tensor.device_mesh.get_coordinate()
    assert place is not None
    for axis, placement in enumerate(tensor.placements):
        if placement.is_replicate():
            size = tensor.device_mesh.size(axis)
            number, replicas = (
                number * size + place[axis],
                replicas * size,
            )
    return number, replicas
