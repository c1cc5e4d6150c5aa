"""Reading and writing of safetensors files, one tensor at a time, on disk or S3.

Only a file's header and the current tensor are in memory, and nothing in a file can be executed.
Format: https://huggingface.co/docs/safetensors/index#format
"""

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trainrig import storage
from trainrig.errors import DataError

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
TYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}
PACKED = "U8"  # bytes, each with several numbers of a quantised format
TYPE_NAMES = {dtype: name for name, dtype in TYPES.items()}
LENGTH = 8  # bytes of the header's length at the start of a file
LONGEST_HEADER = 100_000_000  # bytes of the longest header, as in the safetensors library
BLOCK = 64 * 2**20  # bytes to read at a time
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


@dataclass(frozen=True)
class StoredTensor:
    """Location of a tensor in a safetensors file."""

    path: str
    dtype: str  # dtype by its name in the format
    shape: tuple[int, ...]
    begin: int  # offset of its first byte in the file
    end: int

    def read(self) -> Tensor:
        """Return the tensor in its stored dtype.

        Raises DataError for quantised weights and for truncated files.
        """
        if self.dtype not in TYPES:
            raise DataError(
                f"{self.path}: has a tensor of type {self.dtype}; undo the quantisation and save "
                f"the model in one of {', '.join(TYPES)}"
            )
        return self._read_as(TYPES[self.dtype])

    def read_bytes(self) -> Tensor:
        """Return a tensor of bytes, such as packed numbers. Raises DataError for another dtype."""
        if self.dtype != PACKED:
            raise DataError(
                f"{self.path}: has packed weights of type {self.dtype} instead of {PACKED}; "
                "download the model again"
            )
        return self._read_as(torch.uint8)

    def _read_as(self, dtype: torch.dtype) -> Tensor:
        tensor = torch.empty(self.shape, dtype=dtype)
        memory = tensor.view(-1).view(torch.uint8).numpy().data
        for place in range(0, len(memory), BLOCK):
            part = memory[place : place + BLOCK]
            if storage.read_into(self.path, self.begin + place, part) != len(part):
                raise DataError(f"{self.path}: is truncated; download or save it again")
        return tensor


def open_tensors(folder: str) -> dict[str, StoredTensor]:
    """Return every tensor of the safetensors files of `folder` by name, reading only the headers.

    Raises DataError for missing or damaged files.
    """
    found: dict[str, StoredTensor] = {}
    paths = [storage.join(folder, file) for file in _find_weight_files(folder)]
    for path, header in zip(paths, storage.map_files(_read_header, paths), strict=True):
        for name, tensor in header.items():
            if name in found:
                raise DataError(
                    f"{path}: tensor {name!r} is also in {found[name].path}; save the model again"
                )
            found[name] = tensor
    return found


def _find_weight_files(folder: str) -> list[str]:
    if storage.exists(storage.join(folder, WEIGHTS)):
        return [WEIGHTS]
    index = storage.join(folder, INDEX)
    if not storage.exists(index):
        old = [p for p in storage.list_files(folder) if p.endswith(PICKLES)]
        found = f"{old[0].rpartition('/')[2]} is a pickle, which can run code" if old else ""
        raise DataError(
            f"{folder}: no {WEIGHTS}{'; ' + found if found else ''}; load the model with "
            "Transformers and save it with save_pretrained, which writes safetensors"
        )
    try:
        files = sorted(set(json.loads(storage.read(index))["weight_map"].values()))
    except (ValueError, KeyError, AttributeError, TypeError):
        raise DataError(f"{index}: not an index of safetensors files; download it again") from None
    for file in files:
        if not isinstance(file, str) or "/" in file or not file.endswith(".safetensors"):
            raise DataError(
                f"{index}: {file!r} is not a safetensors file of this folder; download the "
                "index again"
            )
    return files


def _read_header(path: str) -> dict[str, StoredTensor]:
    try:
        size = storage.measure_size(path)
        length = int.from_bytes(storage.read_range(path, 0, LENGTH), "little") if size else 0
        if not 2 <= length <= min(size - LENGTH, LONGEST_HEADER):
            raise ValueError("the header does not fit the file")
        entries = json.loads(storage.read_range(path, LENGTH, LENGTH + length))
        entries.pop("__metadata__", None)
        tensors = {
            name: _place_tensor(path, entry, LENGTH + length, size)
            for name, entry in entries.items()
        }
    except FileNotFoundError:
        raise DataError(f"{path}: is missing, though {INDEX} names it; download it") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path}: damaged ({error}); download or save it again") from None
    return tensors


def _place_tensor(path: str, entry: Mapping[str, Any], first: int, size: int) -> StoredTensor:
    begin, end = (first + int(offset) for offset in entry["data_offsets"])
    shape = tuple(int(length) for length in entry["shape"])
    if not first <= begin <= end <= size or min(shape, default=0) < 0:
        raise ValueError(f"a tensor lies at bytes {begin} to {end} of {size}")
    dtype = entry["dtype"]
    size_of_one = TYPES[dtype].itemsize if dtype in TYPES else 1 if dtype == PACKED else None
    if size_of_one is not None and end - begin != math.prod(shape) * size_of_one:
        raise ValueError(f"{end - begin} bytes for a tensor of {shape} {dtype}")
    return StoredTensor(path, dtype, shape, begin, end)


@dataclass(frozen=True)
class PlannedTensor:
    """Tensor to be written, which `read` produces on demand, in any dtype."""

    shape: tuple[int, ...]
    read: Callable[[], Tensor]
    dtype: torch.dtype | None = None  # dtype to store; None: the dtype of the whole folder

    def count_bytes(self, dtype: torch.dtype) -> int:
        """Return the bytes of the tensor in a folder of `dtype`."""
        return math.prod(self.shape) * (self.dtype or dtype).itemsize


def split_into_files(sizes: Mapping[str, int], limit: int) -> dict[str, list[str]]:
    """Return the names of files to write, and the tensors in each, in order.

    No file has more than `limit` bytes of tensors, except that a larger tensor has a file to
    itself.
    """
    groups: list[list[str]] = [[]]
    filled = 0
    for name, size in sizes.items():
        if groups[-1] and filled + size > limit:
            groups.append([])
            filled = 0
        groups[-1].append(name)
        filled += size
    if len(groups) == 1:
        return {WEIGHTS: groups[0]}
    last = len(groups)
    return {f"model-{n:05}-of-{last:05}.safetensors": group for n, group in enumerate(groups, 1)}


def write_tensors(
    folder: str, tensors: Mapping[str, PlannedTensor], dtype: torch.dtype, file_bytes: int
) -> None:
    """Write `tensors` into safetensors files of `folder`, with an index if needed.

    A tensor without a dtype of its own is written as `dtype`. An index is written for several
    files. The same arguments give the same bytes.
    """
    sizes = {name: tensor.count_bytes(dtype) for name, tensor in tensors.items()}
    files = split_into_files(sizes, file_bytes)
    for file, names in files.items():
        _write_file(storage.join(folder, file), {name: tensors[name] for name in names}, dtype)
    if len(files) > 1:
        index = {
            "metadata": {"total_size": sum(sizes.values())},
            "weight_map": {name: file for file, names in files.items() for name in names},
        }
        storage.write(storage.join(folder, INDEX), json.dumps(index, indent=2).encode())


def _write_file(path: str, tensors: Mapping[str, PlannedTensor], dtype: torch.dtype) -> None:
    with storage.atomic_file(path) as temporary, open(temporary, "wb") as file:  # noqa: PTH123
        file.write(_write_header(tensors.items(), dtype))
        for name, planned in tensors.items():
            tensor = planned.read().detach().to("cpu", planned.dtype or dtype).contiguous()
            assert tuple(tensor.shape) == planned.shape, name
            file.write(tensor.view(-1).view(torch.uint8).numpy().data)


def _write_header(tensors: Iterable[tuple[str, PlannedTensor]], dtype: torch.dtype) -> bytes:
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, planned in tensors:
        end = at + planned.count_bytes(dtype)
        entries[name] = {
            "dtype": TYPE_NAMES[planned.dtype or dtype],
            "shape": list(planned.shape),
            "data_offsets": [at, end],
        }
        at = end
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text = text.ljust(-(-len(text) // 8) * 8)  # the format allows spaces at the end of the header
    return len(text).to_bytes(LENGTH, "little") + text
