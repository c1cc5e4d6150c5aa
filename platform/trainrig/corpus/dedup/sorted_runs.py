"""Runs: files of rows sorted by part, from which a reader takes one part of each file.

Together they form a shuffle. Each task writes one *run*, its rows grouped by part, and the task of
a part reads its rows from every run. The number of files is that of the writers, not writers times
parts, and a reader holds one part, or a piece of it.

A run is written in chunks, so its writer need not hold all of it; each chunk is grouped.

8 bytes: chunks · 8 bytes: parts · 8 bytes: rows
    (parts + 1) x 8 bytes: number of rows before each part, over all chunks
    the rows of all chunks
    if several chunks, chunks x (parts + 1) x 8 bytes: first row of each part of each chunk

One short read shows whether a part is empty, as most parts of a large search are.
"""

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from trainrig import storage
from trainrig.corpus.array_types import Int64s
from trainrig.corpus.compiled import compile_nogil
from trainrig.errors import DataError

PIECE = 2**18  # rows per read where not all are held: 6 MB of candidates

_NUMBER = 8  # bytes of a number
_HEAD = 3 * _NUMBER

Rows = NDArray[np.void]


@dataclass
class Run:
    """A run of `parts` parts that is being written to `file`."""

    file: BinaryIO
    parts: int
    _table: list[Int64s] = field(default_factory=list)

    def add(self, rows: NDArray[Any], part_of: Int64s) -> None:
        """Write `rows`, each to its part by `part_of`, in their order within a part."""
        order, starts = group_by_part(part_of.astype(np.int64), self.parts)
        self.add_grouped([np.take(rows, order)], starts)

    def add_grouped(self, pieces: Iterable[NDArray[Any]], starts: Int64s) -> None:
        """Write rows that are grouped by part; `starts` [parts + 1] holds each part's first row."""
        begin = self._table[-1][-1] if self._table else 0
        for rows in pieces:
            rows.tofile(self.file)
        self._table.append(starts + begin)

    def close(self) -> None:
        """Write the header, and the table of the chunks if there are several."""
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
    """Open a run for writing; it appears at `path` when the block ends."""
    with storage.atomic_file(path) as temporary, Path(temporary).open("wb") as file:
        file.write(bytes(_compute_rows_begin(parts)))
        run = Run(file, parts)
        yield run
        run.close()


def write_run(path: str, rows: Rows, part_of: Int64s, parts: int) -> None:
    """Write a run of `rows`, each in its part by `part_of`, in their order within a part."""
    with writing_run(path, parts) as run:
        run.add(rows, part_of)


def write_grouped(path: str, rows: NDArray[Any], starts: Int64s) -> None:
    """Write a run of rows that are grouped by part; `starts` is the first row of each part."""
    with writing_run(path, len(starts) - 1) as run:
        run.add_grouped([rows], starts)


@dataclass(frozen=True)
class RunPart:
    """Location of one part in many runs, not read yet."""

    kind: np.dtype[Any]
    _spans: tuple[tuple[str, int, int], ...]  # path, first byte and rows of each chunk

    @classmethod
    def of(cls, paths: Iterable[str], part: int, kind: np.dtype[Any]) -> "RunPart":
        """Locate a part in the runs at `paths`.

        Raises DataError if a file is torn.
        """
        spans = ((path, _find_part_spans(path, part, kind.itemsize)) for path in paths)
        return cls(kind, tuple((path, *span) for path, found in spans for span in found))

    @property
    def count(self) -> int:
        """The number of rows in the part."""
        return sum(rows for _, _, rows in self._spans)

    def count_rows(self, paths: Iterable[str]) -> list[int]:
        """Return the number of rows of the part in each of the runs at `paths`."""
        found = dict.fromkeys(paths, 0)
        for path, _, rows in self._spans:
            found[path] += rows
        return list(found.values())

    def read(self) -> NDArray[Any]:
        """Read all rows of the part, run after run.

        Raises DataError if a file is torn.
        """
        rows = np.empty(self.count, self.kind)
        filled = 0
        for piece in self._read(PIECE):
            rows[filled : filled + len(piece)] = piece
            filled += len(piece)
        return rows

    def iterate_chunks(self) -> Iterator[NDArray[Any]]:
        """Yield the rows of the part in each chunk, possibly none; skip runs without rows."""
        for span in self._spans:
            yield _read(*span, self.kind)

    def iterate_pieces(self, most: int | None = None) -> Iterator[NDArray[Any]]:
        """Yield the rows of `read` in pieces of at most `most` rows.

        Small chunks of several runs are joined.
        """
        most = most or PIECE
        held = list[NDArray[Any]]()
        waiting = 0
        for piece in self._read(most):
            if waiting + len(piece) > most:
                yield np.concatenate(held)
                held = []
                waiting = 0
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
    """Read all rows of one part, run after run.

    Raises DataError if a file is torn.
    """
    return RunPart.of(paths, part, kind).read()


def _compute_rows_begin(parts: int) -> int:
    return _HEAD + _NUMBER * (parts + 1)


def _find_part_spans(path: str, part: int, size: int) -> list[tuple[int, int]]:
    """Return the first byte and the number of the part's rows in each chunk of a run.

    The list is empty if all chunks lack the part. `size` is the size of a row in bytes.
    """
    begin, end = _read_numbers(path, _HEAD + _NUMBER * part, 2)
    if begin == end:
        return []
    chunks, parts, rows = _read_numbers(path, 0, 3)
    starts = [begin, end]
    if chunks > 1:  # reads from the part's entry for the first chunk on
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
    return DataError(
        f"{path}: the file is truncated; delete it and the records of its pass, and run again"
    )


@compile_nogil
def group_by_part(part_of: Int64s, parts: int) -> tuple[Int64s, Int64s]:
    """Return a stable order that groups rows by part, and the start of each part."""
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
