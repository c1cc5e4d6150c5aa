"""Rows sorted into parts, a file for each writer, of which a reader takes one part of all files.

What a shuffle is here: each task writes one *run*, its rows grouped by the part that they belong
to, and the task of a part reads its stretch of every run. Files are as many as writers, not as
writers times parts, and a reader holds one part.

    8 bytes: parts · (parts + 1) x 8 bytes: where each part's rows begin · the rows
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainrig import storage
from trainrig.corpus.compiled import compiled
from trainrig.errors import DataError

_NUMBER = 8  # bytes

Rows = NDArray[np.void]


def write_run(path: str, rows: Rows, part_of: NDArray[np.int64], parts: int) -> None:
    """Write `rows`, each to the part that `part_of` says, in their order within a part."""
    order, starts = grouped(part_of.astype(np.int64), parts)
    write_grouped(path, np.take(rows, order), starts)


def write_grouped(path: str, rows: NDArray[Any], starts: NDArray[np.int64]) -> None:
    """Write rows that stand part after part; `starts` [parts + 1] says where each part begins."""
    head = np.concatenate([np.array([len(starts) - 1], np.int64), starts])
    with storage.atomic_file(path) as temporary, Path(temporary).open("wb") as file:
        file.write(head.tobytes())
        rows.tofile(file)


def read_part(paths: Iterable[str], part: int, kind: np.dtype[Any]) -> NDArray[Any]:
    """The rows of one part, run after run. Raises DataError for a torn file."""
    found = [rows for path in paths if len(rows := _stretch(path, part, kind))]
    return np.concatenate([np.empty(0, kind), *found]) if len(found) != 1 else found[0]


def _stretch(path: str, part: int, kind: np.dtype[Any]) -> NDArray[Any]:
    head = storage.read_range(path, 0, _NUMBER)
    bounds = storage.read_range(path, _NUMBER * (1 + part), _NUMBER * (3 + part))
    if len(head) < _NUMBER or len(bounds) < 2 * _NUMBER:
        raise _torn(path)
    parts = int(np.frombuffer(head, np.int64)[0])
    begin, end = np.frombuffer(bounds, np.int64).tolist()
    if begin == end:
        return np.empty(0, kind)
    first = _NUMBER * (2 + parts)
    data = storage.read_range(path, first + begin * kind.itemsize, first + end * kind.itemsize)
    if len(data) != (end - begin) * kind.itemsize:
        raise _torn(path)
    return np.frombuffer(data, kind)


def _torn(path: str) -> DataError:
    return DataError(f"{path}: torn; delete it and its pass's records, and run again")


@compiled
def grouped(part_of: NDArray[np.int64], parts: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The order that puts like parts together and keeps theirs, and where each part begins."""
    starts = np.zeros(parts + 1, np.int64)
    for part in part_of:
        starts[part + 1] += 1
    for part in range(parts):
        starts[part + 1] += starts[part]
    free = starts.copy()
    order = np.empty(len(part_of), np.int64)
    for index in range(len(part_of)):
        order[free[part_of[index]]] = index
        free[part_of[index]] += 1
    return order, starts
