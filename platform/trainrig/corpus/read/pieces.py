"""Input cut into pieces of about one size: large files split, small ones grouped.

    files  = files_of(source.paths)                  # what the patterns name
    groups = pieces(files, source.reading)           # a split for each group
    task   = {"pieces": [as_json(piece) for piece in group]}   # plain JSON, travels anywhere
    for task_piece in task["pieces"]:
        for page in read(from_json(task_piece), source.reading): ...   # Page | Unreadable

Where a file is cut follows from the files' sizes and the run file alone, so outputs that are named
by their piece are the same whoever reads them, beside how many others. The pages of all pieces of a
file, one after another, are those of the file read at once, wherever the cuts fall:

- WARC and ARC, plain or with a gzip member for each record (as crawlers write them): by bytes; a
  piece has the records that begin in it.
- JSONL and text read by lines or blocks, not packed: by bytes, likewise.
- Parquet: by row groups.
- All else (one gzip or zstd stream, an HTML file, a text that is one document) is one piece.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from trainrig.corpus.read.files import File
from trainrig.corpus.read.formats import can_be_cut, recognise
from trainrig.corpus.read.settings import Format, ReadSettings

PIECES = 256  # that a source is cut into, unless they would be smaller or larger than:
SMALLEST_PIECE = 4 * 2**20  # bytes
LARGEST_PIECE = 64 * 2**20  # bytes
OPENING = 2**14  # bytes that could be read in the time that opening a file takes
_THREADS = 8  # that look at first bytes at a time; S3 answers each after some 30 ms


@dataclass(frozen=True)
class InputPiece:
    """A file, or a part of one. `begin` and `end` count bytes; of a Parquet file, row groups."""

    path: str
    name: str  # what may show in output: the path below what the pattern fixes
    format: Format
    begin: int = 0
    end: int | None = None  # None: to the end of the file


def as_json(piece: InputPiece) -> dict[str, Any]:
    """`piece` as plain JSON values."""
    return dataclasses.asdict(piece)


def from_json(values: Mapping[str, Any]) -> InputPiece:
    """The piece that `as_json` gave `values` for."""
    return InputPiece(**values)


def cut_pieces(files: Sequence[File], reading: ReadSettings) -> list[list[InputPiece]]:
    """Groups of pieces of about one size, in the order of `files`.

    Looks at the first bytes of each file (a Parquet file's last). Raises DataError for a file that
    is not recognised.
    """
    size = reading.piece_bytes or choose_piece_size(files)
    with ThreadPoolExecutor(_THREADS) as threads:
        cut = list(threads.map(lambda file: _cut_file(file, reading, size), files))
    return list(_group_pieces(itertools.chain.from_iterable(cut), size))


def choose_piece_size(files: Sequence[File]) -> int:
    """Bytes that a piece of `files` has about, where the run file says nothing of it."""
    share = sum(file.bytes for file in files) // PIECES
    return min(max(share, SMALLEST_PIECE), LARGEST_PIECE)


def _cut_file(file: File, reading: ReadSettings, size: int) -> list[tuple[InputPiece, int]]:
    """The pieces of one file, each with its bytes."""
    format_ = reading.format or recognise(file)
    whole = InputPiece(file.path, file.name, format_)
    number = round(file.bytes / size)
    if number < 2:
        return [(whole, file.bytes)]
    if format_ == "parquet":
        from trainrig.corpus.read.parquet import measure_row_groups  # loads pyarrow

        return _cut_by_row_groups(whole, measure_row_groups(file.path, reading.fields), size)
    if not can_be_cut(file.path, format_, reading):
        return [(whole, file.bytes)]
    cuts = [file.bytes * n // number for n in range(number)]
    ends: list[int | None] = [*cuts[1:], None]
    return [
        (dataclasses.replace(whole, begin=begin, end=end), file.bytes // number)
        for begin, end in zip(cuts, ends, strict=True)
    ]


def _cut_by_row_groups(
    whole: InputPiece, bytes_of: Sequence[int], size: int
) -> list[tuple[InputPiece, int]]:
    found = []
    begin = 0
    for group in _iterate_runs(bytes_of, size):
        piece = dataclasses.replace(whole, begin=begin, end=begin + len(group))
        found.append((piece, sum(group)))
        begin += len(group)
    return found or [(whole, 0)]


def _iterate_runs(sizes: Sequence[int], limit: int) -> Iterator[list[int]]:
    """Neighbours together as long as they are at most `limit` in sum."""
    run: list[int] = []
    for size in sizes:
        if run and sum(run) + size > limit:
            yield run
            run = []
        run.append(size)
    if run:
        yield run


def _group_pieces(cut: Iterator[tuple[InputPiece, int]], size: int) -> Iterator[list[InputPiece]]:
    group: list[InputPiece] = []
    filled = 0
    for piece, bytes_ in cut:
        weight = bytes_ + OPENING
        if group and filled + weight > size:
            yield group
            group, filled = [], 0
        group.append(piece)
        filled += weight
    if group:
        yield group
