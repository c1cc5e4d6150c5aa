"""One rank's rows of all tensors, as a safetensors file in memory.

The header lists the tensors with their dtypes, shapes and byte ranges. Its metadata has the first
row of each part in the format of torch's distributed checkpointing, so torch's
HuggingFaceStorageReader reads these files too. trainrig's readers use the index in the manifest
instead (index.py). Nothing in these files can be executed.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trainrig.train.checkpoint.chunks import FileChunks, write_file
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

    def write(self, path: str) -> FileChunks:
        """Write the file to `path`, and return its chunks; the header is a separate chunk."""
        return write_file(path, self._buffer.numpy().data, self._header_bytes)


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
