"""Rows sorted into parts, a file for each writer, of which a reader takes one part of all files.

What a shuffle is here: each task writes one *run*, its rows grouped by the part that they belong
to, and the task of a part reads its stretch of every run. Files are as many as writers, not as
writers times parts, and a reader holds one part, or a piece of it at a time.

A run is written chunk after chunk, so that its writer need not hold it; each chunk is grouped.

    8 bytes: chunks · 8 bytes: parts · 8 bytes: where the table begins · the rows of all chunks
    the table: chunks x (parts + 1) x 8 bytes: the row with which each part begins
"""

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from trainrig import storage
from trainrig.corpus.compiled import compiled
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
        order, starts = grouped(part_of.astype(np.int64), self.parts)
        self.add_grouped([np.take(rows, order)], starts)

    def add_grouped(self, pieces: Iterable[NDArray[Any]], starts: NDArray[np.int64]) -> None:
        """Write rows that stand part after part; `starts` [parts + 1] says where each begins."""
        begin = self._table[-1][-1] if self._table else 0
        for rows in pieces:
            rows.tofile(self.file)
        self._table.append(starts + begin)

    def close(self) -> None:
        """Write what tells where each part lies."""
        table = self.file.tell()
        for starts in self._table:
            self.file.write(starts.tobytes())
        self.file.seek(0)
        self.file.write(np.array([len(self._table), self.parts, table], np.int64).tobytes())


@contextlib.contextmanager
def writing_run(path: str, parts: int) -> Iterator[Run]:
    """A run at `path`, which is there once the block ends."""
    with storage.atomic_file(path) as temporary, Path(temporary).open("wb") as file:
        file.write(bytes(_HEAD))
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
class Part:
    """One part of many runs, not read yet."""

    kind: np.dtype[Any]
    _spans: tuple[tuple[str, int, int], ...]  # of chunks: path, first row, the one after the last

    @classmethod
    def of(cls, paths: Iterable[str], part: int, kind: np.dtype[Any]) -> "Part":
        """That part of the runs at `paths`. Raises DataError for a torn file."""
        return cls(kind, tuple((path, *span) for path in paths for span in _spans(path, part)))

    @property
    def count(self) -> int:
        """Its rows."""
        return sum(end - begin for _, begin, end in self._spans)

    def read(self) -> NDArray[Any]:
        """Its rows, run after run. Raises DataError for a torn file."""
        rows, filled = np.empty(self.count, self.kind), 0
        for piece in self.pieces():
            rows[filled : filled + len(piece)] = piece
            filled += len(piece)
        return rows

    def chunks(self) -> Iterator[NDArray[Any]]:
        """What each chunk of each run has of it, be it nothing."""
        for span in self._spans:
            yield _read(*span, self.kind)

    def pieces(self, most: int | None = None) -> Iterator[NDArray[Any]]:
        """The same, at most so many rows at a time."""
        for path, begin, end in self._spans:
            for first in range(begin, end, most or PIECE):
                yield _read(path, first, min(first + (most or PIECE), end), self.kind)


def read_part(paths: Iterable[str], part: int, kind: np.dtype[Any]) -> NDArray[Any]:
    """The rows of one part, run after run. Raises DataError for a torn file."""
    return Part.of(paths, part, kind).read()


def _spans(path: str, part: int) -> list[tuple[int, int]]:
    """Which rows of a run its chunks have of a part."""
    head = storage.read_range(path, 0, _HEAD)
    if len(head) < _HEAD:
        raise _torn(path)
    chunks, parts, table = np.frombuffer(head, np.int64).tolist()
    if not chunks:
        return []
    # The table from the part's first entry on: of one chunk, the only two that are wanted.
    entries = (chunks - 1) * (parts + 1) + 2
    begin = table + _NUMBER * part
    data = storage.read_range(path, begin, begin + _NUMBER * entries)
    if not table or len(data) != _NUMBER * entries:
        raise _torn(path)
    starts = np.frombuffer(data, np.int64)
    ends = starts[1 :: parts + 1]
    return list(zip(starts[:: parts + 1].tolist(), ends.tolist(), strict=True))


def _read(path: str, first: int, end: int, kind: np.dtype[Any]) -> NDArray[Any]:
    begin, end = (_HEAD + row * kind.itemsize for row in (first, end))
    data = storage.read_range(path, begin, end) if begin < end else b""
    if len(data) != end - begin:
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
