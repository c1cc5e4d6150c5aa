"""Rows sorted into parts, a file for each writer, of which a reader takes one part of all files.

What a shuffle is here: each task writes one *run*, its rows grouped by the part that they belong
to, and the task of a part reads its partition of every run. Files are as many as writers, not as
writers times parts, and a reader holds one part, or a piece of it at a time.

A run is written chunk after chunk, so that its writer need not hold it; each chunk is grouped.

    8 bytes: chunks · 8 bytes: parts · 8 bytes: rows
    (parts + 1) x 8 bytes: how many rows the parts before each one have together
    the rows of all chunks
    of several, chunks x (parts + 1) x 8 bytes: the row with which each part of each begins

That a part is empty, as most parts of a large search are, is seen by one short read.
"""

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from trainrig import storage
from trainrig.corpus.compiled import compile_nogil
from trainrig.errors import DataError

PIECE = 2**18  # rows that are read at a time where not all are held: 6 MB of candidates

_NUMBER = 8  # bytes
_HEAD = 3 * _NUMBER

Rows = NDArray[np.void]


@dataclass
class Run:
    """A run that is being written, to `file`, of so many parts."""

    file: BinaryIO
    parts: int
    _table: list[NDArray[np.int64]] = field(default_factory=list)

    def add(self, rows: NDArray[Any], part_of: NDArray[np.int64]) -> None:
        """Write `rows`, each to the part that `part_of` says, in their order within a part."""
        order, starts = group_by_part(part_of.astype(np.int64), self.parts)
        self.add_grouped([np.take(rows, order)], starts)

    def add_grouped(self, pieces: Iterable[NDArray[Any]], starts: NDArray[np.int64]) -> None:
        """Write rows that stand part after part; `starts` [parts + 1] says where each begins."""
        begin = self._table[-1][-1] if self._table else 0
        for rows in pieces:
            rows.tofile(self.file)
        self._table.append(starts + begin)

    def close(self) -> None:
        """Write what tells where each part lies."""
        counts = np.zeros(self.parts, np.int64)
        for starts in self._table:
            if len(self._table) > 1:
                self.file.write(starts.tobytes())
            counts += np.diff(starts)
        self.file.seek(0)
        before = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        self.file.write(np.array([len(self._table), self.parts, before[-1]]).tobytes())
        self.file.write(before.tobytes())


@contextlib.contextmanager
def writing_run(path: str, parts: int) -> Iterator[Run]:
    """A run at `path`, which is there once the block ends."""
    with storage.atomic_file(path) as temporary, Path(temporary).open("wb") as file:
        file.write(bytes(_compute_rows_begin(parts)))
        run = Run(file, parts)
        yield run
        run.close()


def write_run(path: str, rows: Rows, part_of: NDArray[np.int64], parts: int) -> None:
    """Write a run of `rows`, each in the part that `part_of` says, in their order within it."""
    with writing_run(path, parts) as run:
        run.add(rows, part_of)


def write_grouped(path: str, rows: NDArray[Any], starts: NDArray[np.int64]) -> None:
    """Write a run of rows that stand part after part; `starts` says where each part begins."""
    with writing_run(path, len(starts) - 1) as run:
        run.add_grouped([rows], starts)


@dataclass(frozen=True)
class RunPart:
    """One part of many runs, not read yet."""

    kind: np.dtype[Any]
    _spans: tuple[tuple[str, int, int], ...]  # of chunks: path, the first byte, rows

    @classmethod
    def of(cls, paths: Iterable[str], part: int, kind: np.dtype[Any]) -> "RunPart":
        """That part of the runs at `paths`. Raises DataError for a torn file."""
        spans = ((path, _find_part_spans(path, part, kind.itemsize)) for path in paths)
        return cls(kind, tuple((path, *span) for path, found in spans for span in found))

    @property
    def count(self) -> int:
        """Its rows."""
        return sum(rows for _, _, rows in self._spans)

    def count_rows(self, paths: Iterable[str]) -> list[int]:
        """Its rows in each of the runs at `paths`."""
        found = dict.fromkeys(paths, 0)
        for path, _, rows in self._spans:
            found[path] += rows
        return list(found.values())

    def read(self) -> NDArray[Any]:
        """Its rows, run after run. Raises DataError for a torn file."""
        rows, filled = np.empty(self.count, self.kind), 0
        for piece in self._read(PIECE):
            rows[filled : filled + len(piece)] = piece
            filled += len(piece)
        return rows

    def iterate_chunks(self) -> Iterator[NDArray[Any]]:
        """What each chunk has of it, be it nothing; of runs that have nothing, no chunk."""
        for span in self._spans:
            yield _read(*span, self.kind)

    def iterate_pieces(self, most: int | None = None) -> Iterator[NDArray[Any]]:
        """What `read` gives, at most so many rows at a time: the few of many runs together."""
        most = most or PIECE
        held, waiting = list[NDArray[Any]](), 0
        for piece in self._read(most):
            if waiting + len(piece) > most:
                yield np.concatenate(held)
                held, waiting = [], 0
            held.append(piece)
            waiting += len(piece)
        if waiting:
            yield np.concatenate(held)

    def _read(self, most: int) -> Iterator[NDArray[Any]]:
        for path, begin, rows in self._spans:
            for first in range(0, rows, most):
                at = begin + first * self.kind.itemsize
                yield _read(path, at, min(most, rows - first), self.kind)


def read_part(paths: Iterable[str], part: int, kind: np.dtype[Any]) -> NDArray[Any]:
    """The rows of one part, run after run. Raises DataError for a torn file."""
    return RunPart.of(paths, part, kind).read()


def _compute_rows_begin(parts: int) -> int:
    return _HEAD + _NUMBER * (parts + 1)


def _find_part_spans(path: str, part: int, size: int) -> list[tuple[int, int]]:
    """Of each chunk of a run, the first byte of its rows of a part, and how many these are.

    None if all are empty. `size` is that of a row in bytes.
    """
    begin, end = _read_numbers(path, _HEAD + _NUMBER * part, 2)
    if begin == end:
        return []
    chunks, parts, rows = _read_numbers(path, 0, 3)
    starts = [begin, end]
    if chunks > 1:  # from the part's first entry in the table on
        table = _compute_rows_begin(parts) + rows * size + _NUMBER * part
        starts = _read_numbers(path, table, (chunks - 1) * (parts + 1) + 2)
    return [
        (_compute_rows_begin(parts) + first * size, last - first)
        for first, last in zip(starts[:: parts + 1], starts[1 :: parts + 1], strict=True)
    ]


def _read_numbers(path: str, begin: int, count: int) -> list[int]:
    data = storage.read_range(path, begin, begin + _NUMBER * count)
    if len(data) != _NUMBER * count:
        raise _build_torn_error(path)
    return [int(number) for number in np.frombuffer(data, np.int64)]


def _read(path: str, begin: int, rows: int, kind: np.dtype[Any]) -> NDArray[Any]:
    size = rows * kind.itemsize
    data = storage.read_range(path, begin, begin + size) if size else b""
    if len(data) != size:
        raise _build_torn_error(path)
    return np.frombuffer(data, kind)


def _build_torn_error(path: str) -> DataError:
    return DataError(f"{path}: torn; delete it and its pass's records, and run again")


@compile_nogil
def group_by_part(
    part_of: NDArray[np.int64], parts: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
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
