"""This rank's share of a checkpoint: the rows of each tensor that it holds, and that it writes.

A *replica* of a tensor is a whole copy, on one rank or sharded over several.
"""

from collections import defaultdict
from collections.abc import Mapping

import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import _StridedShard

from trainrig.parallel.mesh import WorkerMesh
from trainrig.parallel.sharding.fsdp import find_local_slice
from trainrig.train.checkpoint.index import IndexedTensor, compute_partitions
from trainrig.train.checkpoint.tensor_file import TYPE_NAMES


def find_held(tensor: Tensor) -> tuple[Tensor, int]:
    """Return a view of the rows of `tensor` on this rank, and the index of its first row.

    Only dim 0 may be sharded, as FSDP does it.
    """
    local, first = find_local_slice(tensor)
    assert not any(first[1:]) and local.shape[1:] == tensor.shape[1:], (
        "checkpoints know tensors that are cut along their first dimension alone"
    )
    return local, first[0] if first else 0


def find_written(tensors: Mapping[str, Tensor], lead: int = 0) -> dict[str, tuple[Tensor, int]]:
    """Return the rows of `tensors` that this rank writes, with the first row's index, by name.

    Sharded rows are written by the rank that holds them; if several replicas hold the same rows,
    the tensors are spread over them evenly by bytes. Tensors that are no DTensors, which are small,
    are written by rank `lead`, the first of the ranks that hold them. Together, all ranks write
    each row once.
    """
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
    """Return the index of `tensors` in the files that all ranks write; file n is rank n's.

    Every rank computes it without communication, from how the tensors are sharded.
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
    """Return the index of the tensors of all pipeline stages, as `index_all` does for one stage.

    Collective over the pipeline ranks of `mesh`, each of which holds some of the tensors.
    """
    mine = index_all(tensors, mesh.lead)
    pipeline = mesh.pipeline
    if pipeline.group is None:
        return mine
    found = [mine] * pipeline.size
    dist.all_gather_object(found, mine, group=pipeline.group)
    return {name: tensor for stage in found for name, tensor in stage.items()}


def _assign_writers(tensors: Mapping[str, Tensor], lead: int) -> dict[str, int]:
    """Return the number of the replica that writes each of `tensors`, keyed by name, in order.

    A tensor that is no DTensor is whole on every rank, so its replica `lead` is rank `lead`.
    """
    # bytes that each replica writes, by number of replicas
    loads: dict[int, list[int]] = defaultdict(list)
    writers = {}
    for name in sorted(tensors):
        tensor = tensors[name]
        if not isinstance(tensor, DTensor):
            writers[name] = lead
            continue
        replicas = _find_replica(tensor)[1]
        load = loads.setdefault(replicas, [0] * replicas)
        writers[name] = load.index(min(load))
        # bytes of the whole tensor, which all ranks know
        load[writers[name]] += tensor.nbytes
    return writers


def _find_ranks(tensor: Tensor, replica: int) -> tuple[list[int], int]:
    """Return the ranks that hold a replica of `tensor`, in the order of rows, and the parts.

    The rows are first cut into that number of parts, and then each part is cut further over its
    ranks; see `compute_partitions`.
    """
    if not isinstance(tensor, DTensor):
        return [replica], 1
    places: list[int | slice] = []
    sliced = 0  # number of sharded mesh axes
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
    # Rows of divided experts, which have a _StridedShard, are cut along the last axis first, and
    # each part along the one before it. Tensor parallelism cuts along the first axis first.
    if any(isinstance(placement, _StridedShard) for placement in tensor.placements):
        ranks = ranks.T
    return ranks.flatten().tolist(), ranks.shape[0]


def _find_replica(tensor: Tensor) -> tuple[int, int]:
    """Return the index of the replica that this rank holds, and the number of replicas."""
    if not isinstance(tensor, DTensor):
        return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    number = 0
    replicas = 1
    place = tensor.device_mesh.get_coordinate()
    assert place is not None
    for axis, placement in enumerate(tensor.placements):
        if placement.is_replicate():
            size = tensor.device_mesh.size(axis)
            number = number * size + place[axis]
            replicas = replicas * size
    return number, replicas
