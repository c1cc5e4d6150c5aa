"""Files of records in slices, each of which can be read alone.

Data that one split leaves for many readers is one file with a slice per reader, because a thousand
splits times a thousand ranges would be a million files. The file holds the number of slices, the
start of each (in records) and the end of all, then the records in little-endian memory layout.
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from trainrig import storage
from trainrig.errors import DataError

Records = NDArray[Any]


def save(path: str, records: Records, bounds: NDArray[np.int64]) -> None:
    """Write `records`, with slice i from `bounds[i]` up to `bounds[i + 1]`."""
    with storage.atomic_file(path) as temporary, Path(temporary).open("wb") as file:
        np.array([len(bounds) - 1, *bounds], "<i8").tofile(file)
        np.ascontiguousarray(records).tofile(file)


def read_bounds(path: str) -> NDArray[np.int64]:
    """Read the start of each slice in records, followed by the number of records.

    Raises DataError if the file is cut short.
    """
    count = int(_read(path, "<i8", 0, 8)[0])
    return _read(path, "<i8", 8, 16 + 8 * count).astype(np.int64)


def load(path: str, dtype: DTypeLike, first: int, end: int) -> Records:
    """Read the records of the slices `first` up to `end`.

    Raises DataError if the file is cut short.
    """
    bounds = read_bounds(path)
    return load_records(path, dtype, len(bounds), int(bounds[first]), int(bounds[end]))


def load_records(path: str, dtype: DTypeLike, bounds: int, begin: int, end: int) -> Records:
    """Read the records `begin` up to `end` of a file with `bounds` bounds.

    Raises DataError if the file is cut short.
    """
    size = np.dtype(dtype).itemsize
    head = 8 * (bounds + 1)
    return _read(path, dtype, head + size * begin, head + size * end)


def _read(path: str, dtype: DTypeLike, begin: int, end: int) -> Records:
    data = storage.read_range(path, begin, end) if end > begin else b""
    if len(data) != end - begin:
        raise DataError(f"{path}: the file ends before byte {end:,}; delete it and run again")
    return np.frombuffer(data, dtype)
