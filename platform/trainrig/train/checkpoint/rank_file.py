"""One rank's file of a checkpoint: the rows that it holds and writes, in the safetensors format.

A *replica* of a tensor is a whole copy, on one rank or sharded over several. The header of a
file lists the tensors with their dtypes, shapes and byte ranges. Its metadata has the first row
of each part in the format of torch's distributed checkpointing, so torch's
HuggingFaceStorageReader reads these files too. trainrig's readers use the index in the manifest
instead (tensor_index.py). Nothing in these files can be executed.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import _StridedShard

from trainrig.parallel.mesh import WorkerMesh
from trainrig.parallel.sharding.fsdp import find_local_slice
from trainrig.train.checkpoint import tensor_index
from trainrig.train.checkpoint.manifest import SUFFIX

# https://huggingface.co/docs/safetensors/index#format
TYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
TYPE_NAMES = {dtype: name for name, dtype in TYPES.items()}
LENGTH = 8  # bytes of the field with the header's length


def tensor_file_name(rank: int) -> str:
    """Return torch's name for the file that `rank` writes: numbered from 1."""
    return f"shard-{rank + 1:05d}-model-00001-of-00001{SUFFIX}"


@dataclass(frozen=True)
class TensorRows:
    """Neighbouring rows (indices of dim 0) of a tensor; a scalar is one row."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]  # shape of this part
    first: int  # index of its first row in the whole tensor
    begin: int = 0  # byte range in the file, from here up to `end`
    end: int = 0

    @property
    def count(self) -> int:
        """Number of rows."""
        return self.shape[0] if self.shape else 1


class StagedFile:
    """Safetensors file in memory, whose tensors are filled again for each save."""

    def __init__(self, parts: Mapping[str, tuple[Tensor, int]]) -> None:
        """Allocate the file for `parts`: name → (rows of the tensor, index of the first row)."""
        rows = [
            TensorRows(name, part.dtype, tuple(part.shape), first)
            for name, (part, first) in parts.items()
        ]
        header, placed = _lay_out(rows)
        self._header_bytes = len(header)
        # Pinned memory, so that copies from the device run at full speed.
        pinned = any(part.is_cuda for part, _ in parts.values())
        size = max((rows_in_file.end for rows_in_file in placed), default=len(header))
        self._buffer = torch.empty(size, dtype=torch.uint8, pin_memory=pinned)
        self._buffer[: len(header)] = torch.frombuffer(bytearray(header), dtype=torch.uint8)
        self._views = {
            rows_in_file.name: self._buffer[rows_in_file.begin : rows_in_file.end]
            .view(rows_in_file.dtype)
            .view(rows_in_file.shape)
            for rows_in_file in placed
        }

    def fill(self, parts: Mapping[str, tuple[Tensor, int]]) -> None:
        """Copy the tensors, with the layout given at creation; return when the copy is complete."""
        on_device = False
        for name, view in self._views.items():
            source = parts[name][0].detach()
            view.copy_(source, non_blocking=True)
            on_device = on_device or source.is_cuda
        if on_device:
            torch.cuda.current_stream().synchronize()

    def fill_one(self, name: str, source: Tensor) -> None:
        """Copy one tensor from the CPU, converting its dtype."""
        self._views[name].copy_(source.detach())

    def write(self, path: str) -> tensor_index.FileChunks:
        """Write the file to `path`, and return its chunks; the header is a separate chunk."""
        return tensor_index.write_file(path, self._buffer.numpy().data, self._header_bytes)


def _lay_out(rows: Iterable[TensorRows]) -> tuple[bytes, list[TensorRows]]:
    """Return the header of a file of `rows`, and the rows with their byte ranges.

    Both depend on `rows` alone.
    """
    # Wide dtypes first, and a header whose size is a multiple of 8 bytes: so each tensor is aligned
    # to its dtype.
    ordered = sorted(rows, key=lambda part: (-part.dtype.itemsize, part.name))
    firsts = {
        part.name: {
            "saved_offsets": [part.first, *([0] * (len(part.shape) - 1))][: len(part.shape)]
        }
        for part in ordered
    }
    entries: dict[str, Any] = {
        "__metadata__": {
            "DCP_SHARDING_INFO": json.dumps(firsts),
            "DCP_VERSION": "1.0",
            "format": "pt",
        }
    }
    at = 0
    ends = []
    for part in ordered:
        size = part.dtype.itemsize * torch.Size(part.shape).numel()
        entries[part.name] = {
            "dtype": TYPE_NAMES[part.dtype],
            "shape": list(part.shape),
            "data_offsets": [at, at + size],
        }
        at += size
        ends.append(at)
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text = text.ljust(-(-len(text) // 8) * 8)  # the format allows trailing spaces
    header = len(text).to_bytes(LENGTH, "little") + text
    placed = [
        TensorRows(
            part.name, part.dtype, part.shape, part.first, begin + len(header), end + len(header)
        )
        for part, begin, end in zip(ordered, [0, *ends], ends, strict=False)
    ]
    return header, placed


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


def index_all(
    tensors: Mapping[str, Tensor], lead: int = 0
) -> dict[str, tensor_index.IndexedTensor]:
    """Return the index of `tensors` in the files that all ranks write; file n is rank n's.

    Every rank computes it without communication, from how the tensors are sharded.
    """
    writers = _assign_writers(tensors, lead)
    found = {}
    for name, tensor in tensors.items():
        ranks, parts = _find_ranks(tensor, writers[name])
        found[name] = tensor_index.IndexedTensor(
            type=TYPE_NAMES[tensor.dtype],
            shape=tuple(tensor.shape),
            partitions=tensor_index.compute_partitions(
                ranks, tensor.shape[0] if tensor.ndim else 1, parts
            ),
        )
    return found


def index_stages(
    tensors: Mapping[str, Tensor], mesh: WorkerMesh
) -> dict[str, tensor_index.IndexedTensor]:
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
