"""One rank's rows of all tensors, as a safetensors file in memory, ready to be written.

The header names the tensors, their types, shapes and places in the file, and in its metadata the
first row of each part, as torch's distributed checkpointing puts it there: torch's
HuggingFaceStorageReader reads these files too; readers here go by the index in the manifest
(index.py). Nothing in them can be executed.
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
LENGTH = 8  # bytes that say how long the header is


def tensor_file_name(rank: int) -> str:
    """What torch calls the file that `rank` writes: it numbers them from 1."""
    return f"shard-{rank + 1:05d}-model-00001-of-00001{SUFFIX}"


@dataclass(frozen=True)
class TensorRows:
    """Some neighbouring rows (places along dim 0) of a tensor; a scalar is one row."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]  # of this part
    first: int  # row of the whole tensor that is this part's first
    begin: int = 0  # where its bytes are in its file
    end: int = 0

    @property
    def count(self) -> int:
        """How many rows."""
        return self.shape[0] if self.shape else 1


class StagedFile:
    """A safetensors file in memory, whose tensors are filled in again and again."""

    def __init__(self, parts: Mapping[str, tuple[Tensor, int]]) -> None:
        """`parts`: name → (some rows of the tensor, the first of them)."""
        rows = [
            TensorRows(name, part.dtype, tuple(part.shape), first)
            for name, (part, first) in parts.items()
        ]
        header, placed = _lay_out(rows)
        self._header_bytes = len(header)
        # Pinned, so that a device copies into it at its full rate.
        pinned = any(part.is_cuda for part, _ in parts.values())
        size = max((each.end for each in placed), default=len(header))
        self._buffer = torch.empty(size, dtype=torch.uint8, pin_memory=pinned)
        self._buffer[: len(header)] = torch.frombuffer(bytearray(header), dtype=torch.uint8)
        self._views = {
            each.name: self._buffer[each.begin : each.end].view(each.dtype).view(each.shape)
            for each in placed
        }

    def fill(self, parts: Mapping[str, tuple[Tensor, int]]) -> None:
        """Copy the tensors, laid out as those this file was made for; returns when that is done."""
        on_device = False
        for name, view in self._views.items():
            source = parts[name][0].detach()
            view.copy_(source, non_blocking=True)
            on_device = on_device or source.is_cuda
        if on_device:
            torch.cuda.current_stream().synchronize()

    def fill_one(self, name: str, source: Tensor) -> None:
        """Copy one tensor, which is on the CPU, in whatever type."""
        self._views[name].copy_(source.detach())

    def write(self, path: str) -> FileChunks:
        """Put the file at `path`; its sums. Its header is a chunk by itself."""
        return write_file(path, self._buffer.numpy().data, self._header_bytes)


def _lay_out(rows: Iterable[TensorRows]) -> tuple[bytes, list[TensorRows]]:
    """The header of a file of `rows`, and their places in it: a function of the rows alone."""
    # Wide types first, and a header of a multiple of 8 bytes: each tensor is aligned to its type.
    ordered = sorted(rows, key=lambda each: (-each.dtype.itemsize, each.name))
    firsts = {
        each.name: {
            "saved_offsets": [each.first, *([0] * (len(each.shape) - 1))][: len(each.shape)]
        }
        for each in ordered
    }
    entries: dict[str, Any] = {
        "__metadata__": {
            "DCP_SHARDING_INFO": json.dumps(firsts),
            "DCP_VERSION": "1.0",
            "format": "pt",
        }
    }
    at, ends = 0, []
    for each in ordered:
        size = each.dtype.itemsize * torch.Size(each.shape).numel()
        entries[each.name] = {
            "dtype": TYPE_NAMES[each.dtype],
            "shape": list(each.shape),
            "data_offsets": [at, at + size],
        }
        at += size
        ends.append(at)
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text = text.ljust(-(-len(text) // 8) * 8)  # the format allows for blanks at its end
    header = len(text).to_bytes(LENGTH, "little") + text
    placed = [
        TensorRows(
            each.name, each.dtype, each.shape, each.first, begin + len(header), end + len(header)
        )
        for each, begin, end in zip(ordered, [0, *ends], ends, strict=False)
    ]
    return header, placed
