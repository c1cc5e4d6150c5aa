"""Records on storage in slices, any of which can be read without the rest.

What a split leaves for many readers is one file with a slice for each, not a file for each: a
thousand splits and a thousand ranges of keys would be a million files. The file is the number of
slices, where each begins (in records; and the end of all), then the records, as they lie in
memory on a little-endian machine.
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from trainrig import storage
from trainrig.errors import DataError

Records = NDArray[Any]


def save(path: str, records: Records, bounds: NDArray[np.int64]) -> None:
    """Write `records`, of which slice i is `bounds[i]` to `bounds[i + 1]`."""
    with storage.atomic_file(path) as temporary, Path(temporary).open("wb") as file:
        np.array([len(bounds) - 1, *bounds], "<i8").tofile(file)
        np.ascontiguousarray(records).tofile(file)


def read_bounds(path: str) -> NDArray[np.int64]:
    """Where each slice of the file begins, in records; last, their number. Raises DataError."""
    count = int(_read(path, "<i8", 0, 8)[0])
    return _read(path, "<i8", 8, 16 + 8 * count).astype(np.int64)


def load(path: str, dtype: DTypeLike, first: int, end: int) -> Records:
    """The records of the slices `first` up to `end`. Raises DataError for a file cut short."""
    bounds = read_bounds(path)
    return load_records(path, dtype, len(bounds), int(bounds[first]), int(bounds[end]))


def load_records(path: str, dtype: DTypeLike, bounds: int, begin: int, end: int) -> Records:
    """The records `begin` up to `end` of a file that has so many `bounds`. Raises DataError."""
    size = np.dtype(dtype).itemsize
    head = 8 * (bounds + 1)
    return _read(path, dtype, head + size * begin, head + size * end)


def _read(path: str, dtype: DTypeLike, begin: int, end: int) -> Records:
    data = storage.read_range(path, begin, end) if end > begin else b""
    if len(data) != end - begin:
        raise DataError(f"{path}: ends before byte {end:,}; delete it and run again")
    return np.frombuffer(data, dtype)
