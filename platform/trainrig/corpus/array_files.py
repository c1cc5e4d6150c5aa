"""Files of named arrays whose bytes depend on the arrays alone: .npz, and files mapped into memory.

Mapped files are immutable and contain JSON metadata ("facts") besides the arrays. Their layout is
that of safetensors (8 bytes of length, a JSON header, the arrays), so other tools can open them,
and opening executes no code. The facts are one JSON string in the header's `__metadata__`, so equal
arrays and facts give equal bytes.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainrig import storage
from trainrig.errors import DataError


def save_arrays(path: str, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write named arrays as an .npz file; equal arrays give equal bytes."""
    keywords: dict[str, Any] = dict(arrays)
    with storage.atomic_file(path) as temporary, Path(temporary).open("wb") as file:
        np.savez(file, **keywords)


def load_arrays(path: str, names: Sequence[str] | None = None) -> dict[str, NDArray[Any]]:
    """Read the arrays `names` of an .npz file, or all of its arrays.

    Other arrays are not read.
    """
    # The file is closed at once: callers open thousands, and a process may hold about 1024 open.
    with np.load(storage.fetch_local_path(path), allow_pickle=False) as file:
        return {name: file[name] for name in names or file.files}


ALIGNMENT = 64  # the arrays begin at a multiple of this many bytes
FORMAT = 1
_TYPES = {"U8": "u1", "U32": "<u4", "U64": "<u8", "I64": "<i8", "F32": "<f4", "F64": "<f8"}
_NAMES = {np.dtype(numpy): name for name, numpy in _TYPES.items()}


def write_arrays(path: str, kind: str, arrays: Mapping[str, NDArray[Any]], facts: Any) -> None:
    """Write a file of the given `kind`, which `open_arrays` checks."""
    header: dict[str, Any] = {
        "__metadata__": {
            "trainrig": json.dumps({"format": FORMAT, "kind": kind, "facts": facts}, sort_keys=True)
        }
    }
    # Widest dtypes first: the format has no padding, so this keeps each array aligned to its dtype.
    placed = sorted(arrays.items(), key=lambda item: (-item[1].itemsize, item[0]))
    end = 0
    for name, array in placed:
        begin = end
        end = end + array.nbytes
        header[name] = {
            "dtype": _NAMES[array.dtype],
            "shape": array.shape,
            "data_offsets": [begin, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (_align_length(8 + len(text)) - 8 - len(text))
    with storage.atomic_file(path) as temporary, Path(temporary).open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, array in placed:
            file.write(np.ascontiguousarray(array).data)


def _align_length(length: int) -> int:
    return -(-length // ALIGNMENT) * ALIGNMENT


def open_arrays(path: str, kind: str) -> tuple[dict[str, NDArray[Any]], Any]:
    """Open a file of arrays; return the arrays, read-only, and the facts.

    Raises DataError if the file is missing, truncated or of another kind.
    """
    try:
        local = storage.fetch_local_path(path)
        size = local.stat().st_size
        with local.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            text = file.read(length) if length <= size - 8 else b""
    except FileNotFoundError:
        raise DataError(f"{path} does not exist; name a model file that trainrig wrote") from None
    try:
        header = json.loads(text)
        described = json.loads(header.pop("__metadata__")["trainrig"])
        found = described["kind"]
        made = described["format"]
        ends = [entry["data_offsets"][1] for entry in header.values()]
    except (AttributeError, KeyError, TypeError, ValueError):
        raise DataError(f"{path} is not a model that trainrig wrote, or is truncated") from None
    if made > FORMAT:
        raise DataError(
            f"{path} has format {made}, but this trainrig reads up to {FORMAT}; upgrade trainrig"
        )
    if found != kind:
        raise DataError(f"{path} is a {found}, but a {kind} is required")
    if max(ends, default=0) > size - 8 - length:
        raise DataError(
            f"{path} is truncated: its arrays end after its {size:,} bytes; copy it again"
        )
    mapped = np.memmap(local, np.uint8, "r", 8 + length) if ends else np.empty(0, np.uint8)
    arrays = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        array = mapped[begin:end].view(_TYPES[entry["dtype"]]).reshape(entry["shape"])
        arrays[name] = array.view(np.ndarray)
    return arrays, described["facts"]
