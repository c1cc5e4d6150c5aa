"""Formats of documents from elsewhere: where a file can be cut, and its rows.

Each format cuts a file into pieces that workers read apart (`cut`), and reads the rows of a piece a
batch at a time (`read`), so that no file is ever held whole.
"""

from __future__ import annotations

import gzip
import io
import itertools
import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from trainrig import storage
from trainrig.config import suggest_choice
from trainrig.errors import DataError

# pyarrow is imported where files are opened: to read a run file takes none.
if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

BATCH_ROWS = 1_024  # rows decoded at a time
LINE_BYTES = 2**28  # a longer line is refused rather than held
PEEKED_LINES = 100  # of a JSONL file, to see which columns it has
# Text packs to about a third: what a packed file counts for when files are dealt to splits.
UNPACKED = 3

Row = Mapping[str, Any] | str  # a row, or why it is none
Rows = Iterator[tuple[int, Row]]  # each with its place in the file


@dataclass(frozen=True)
class FilePart:
    """A part of a file that can be read by itself."""

    begin: int  # row group (Parquet) or byte (JSON lines)
    end: int
    weight: int  # bytes of text, about
    whole: bool  # all of its file


@dataclass(frozen=True)
class StagePart:
    """A part of a file, among all the files of a stage. Plain values: it travels as JSON."""

    table: int  # number of the run file's table that it is of
    path: str
    file: str  # the name it is known by in shards
    begin: int
    end: int
    weight: int
    whole: bool


@dataclass(frozen=True)
class Format:
    """One kind of file."""

    endings: tuple[str, ...]  # of the names that are taken from a folder
    # (path, columns, bytes of a part). No columns stand for all that there are, here and below.
    cut: Callable[[str, Sequence[str], int], list[FilePart]]
    read: Callable[[StagePart, Sequence[str]], Rows]
    # Where each row has columns of its own: (path, columns), to see in the first rows if they are
    # there at all. None: `cut` sees, of every file.
    peek: Callable[[str, Sequence[str]], None] | None = None


def name_place(file: str, place: int) -> str:
    """Where in `file` a row is, as messages say it: "a.jsonl, byte 5,812", "a.parquet, row 7"."""
    by_byte = file.endswith(JSONL_ENDINGS)
    return f"{file}, {'byte' if by_byte else 'row'} {place:,}"


def find_value(row: Mapping[str, Any], column: str) -> Any:
    """What `row` has in `column`, a name or names joined by dots; None if it has no such."""
    if column in row:
        return row[column]
    outer, dot, inner = column.partition(".")
    below = row.get(outer) if dot else None
    return find_value(below, inner) if isinstance(below, Mapping) else None


def _check_columns(path: str, columns: Sequence[str], there: Sequence[str]) -> None:
    for column in columns:
        if column not in there and column.partition(".")[0] not in there:
            raise DataError(f"{path}: no column '{column}'{suggest_choice(column, there)}")


@contextmanager
def _damage_told(path: str, kind: str) -> Iterator[None]:
    """Raise DataError if the block finds that the file at `path` is damaged, or of another kind."""
    import pyarrow as pa

    try:
        yield
    except FileNotFoundError:
        raise DataError(f"{path}: gone since the stage began") from None
    except (pa.ArrowException, UnicodeDecodeError, OSError) as error:
        if getattr(error, "errno", None):  # the disk's or the network's doing
            raise
        found = " ".join(str(error).split())
        raise DataError(f"{path}: not {kind}, or torn ({found}); get or write it again") from None


# Parquet


@contextmanager
def _open_parquet(path: str) -> Iterator[pq.ParquetFile]:
    import pyarrow.parquet as pq

    told = _damage_told(path, "Parquet")
    with told, storage.open_for_arrow(path) as stream, pq.ParquetFile(stream) as file:
        yield file


def _cut_parquet(path: str, columns: Sequence[str], part_bytes: int) -> list[FilePart]:
    """Row groups, as many together as stay within `part_bytes`."""
    with _open_parquet(path) as file:
        _check_columns(path, columns, file.schema_arrow.names)
        weights = [
            sum(
                group.column(number).total_uncompressed_size
                for number in range(group.num_columns)
                if not columns or group.column(number).path_in_schema == columns[0]
            )
            for group in map(file.metadata.row_group, range(file.num_row_groups))
        ]
    cuts: list[FilePart] = []
    begin, held = 0, 0
    for number, weight in enumerate(weights):
        if held and held + weight > part_bytes:
            cuts.append(FilePart(begin, number, held, whole=False))
            begin, held = number, 0
        held += weight
    return [*cuts, FilePart(begin, len(weights), held, whole=not cuts)]


def _read_parquet(piece: StagePart, columns: Sequence[str]) -> Rows:
    for place, batch in read_parquet_batches(piece, columns):
        yield from enumerate(iterate_rows(batch, piece.path), place)


def read_parquet_batches(
    piece: StagePart, columns: Sequence[str] = ()
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows of a part of a Parquet file as Arrow has them, each batch with its first place."""
    with _open_parquet(piece.path) as file:
        groups = range(piece.begin, piece.end)
        place = sum(file.metadata.row_group(number).num_rows for number in range(piece.begin))
        for batch in file.iter_batches(
            BATCH_ROWS, list(groups), _list_outer_columns(columns, file.schema_arrow)
        ):
            yield place, batch
            place += len(batch)


def _list_outer_columns(columns: Sequence[str], schema: pa.Schema) -> list[str]:
    """The columns of the file that hold `columns`."""
    if not columns:
        return list(schema.names)
    names = (name if name in schema.names else name.partition(".")[0] for name in columns)
    return list(dict.fromkeys(names))


def iterate_rows(batch: pa.RecordBatch, path: str) -> Iterator[dict[str, Any]]:
    """The rows of `batch`, of the file at `path`, as Python's values. Raises DataError for damage
    that Arrow did not see: text is decoded here."""
    names = batch.schema.names
    with _damage_told(path, "whole"):
        # A column at a time: three times as quick as `to_pylist` of the batch.
        columns = [column.to_pylist() for column in batch.columns]
    for values in zip(*columns, strict=True):
        yield dict(zip(names, values, strict=True))


# Arrow


@contextmanager
def _open_arrow(path: str) -> Iterator[tuple[pa.Schema, Iterator[pa.RecordBatch]]]:
    """Schema and record batches of an IPC stream or file."""
    import pyarrow as pa

    with _damage_told(path, "an Arrow stream or file"), ExitStack() as stack:
        if path.startswith(storage.S3):
            stream = stack.enter_context(pa.PythonFile(storage.open_read(path), "r"))
        else:
            stream = stack.enter_context(pa.memory_map(path))
        if stream.read(6) == b"ARROW1":
            file = stack.enter_context(pa.ipc.open_file(stream))
            yield file.schema, map(file.get_batch, range(file.num_record_batches))
        else:
            stream.seek(0)
            reader = stack.enter_context(pa.ipc.open_stream(stream))
            yield reader.schema, iter(reader)


def _cut_arrow(path: str, columns: Sequence[str], part_bytes: int) -> list[FilePart]:
    """The whole file: a stream has no table of contents to find a part by."""
    with _open_arrow(path) as (schema, _):
        _check_columns(path, columns, schema.names)
    return [FilePart(0, 1, storage.measure_size(path), whole=True)]


def _read_arrow(piece: StagePart, columns: Sequence[str]) -> Rows:
    with _open_arrow(piece.path) as (schema, batches):
        names = _list_outer_columns(columns, schema)
        place = 0
        for batch in batches:
            for start in range(0, len(batch), BATCH_ROWS):
                part = batch.slice(start, BATCH_ROWS).select(names)
                part.validate(full=True)  # a damaged offset would be followed out of the file
                yield from enumerate(iterate_rows(part, piece.path), place + start)
            place += len(batch)


# JSON lines


def _cut_jsonl(path: str, columns: Sequence[str], part_bytes: int) -> list[FilePart]:
    """Equal ranges of bytes, each of the lines that begin in it; a packed file is one."""
    size = storage.measure_size(path)
    if path.endswith((".gz", ".zst")):
        return [FilePart(0, size, size * UNPACKED, whole=True)]
    parts = max(1, -(-size // part_bytes))
    ends = [size * number // parts for number in range(parts + 1)]
    return [
        FilePart(begin, end, end - begin, whole=parts == 1)
        for begin, end in itertools.pairwise(ends)
    ]


def _peek(path: str, columns: Sequence[str]) -> None:
    """Raise DataError if one of `columns` is in none of the first rows."""
    whole = StagePart(0, path, path, 0, storage.measure_size(path), 0, whole=True)
    first = itertools.islice(_read_jsonl(whole, ()), PEEKED_LINES)
    rows = [row for _, row in first if isinstance(row, Mapping)]
    there = list(dict.fromkeys(name for row in rows for name in row))
    if rows:
        _check_columns(path, columns, there)


def _read_jsonl(piece: StagePart, columns: Sequence[str]) -> Rows:
    del columns  # a line is parsed whole
    for place, line in _read_lines(piece):
        if line is None:
            yield place, "line_too_long"
        elif line == TORN:
            yield place, "torn_file"
        elif not line.isspace():
            yield place, _parse_line(line, first=place == 0)


TORN = b""  # stands for what follows where a packed file breaks off


def _parse_line(line: bytes, first: bool) -> Row:
    try:
        row = json.loads(line.decode("utf-8-sig" if first else "utf-8"))
    except UnicodeDecodeError:
        return "not_utf8"
    except (ValueError, RecursionError):
        return "not_json"
    return row if isinstance(row, dict) else "not_an_object"


def _read_lines(piece: StagePart) -> Iterator[tuple[int, bytes | None]]:
    """The lines that begin in the piece, each with its place; None for one that is too long."""
    try:
        with storage.open_read(piece.path) as packed, unpack_file(piece.path, packed) as stream:
            place = piece.begin
            end = None if stream is not packed else piece.end
            if place > 0:  # the line that begins before belongs to whoever reads before
                stream.seek(place - 1)
                place += _skip_line(stream) - 1
            while end is None or place < end:
                try:
                    line = stream.readline(LINE_BYTES)
                except (EOFError, zlib.error, OSError) as error:
                    if getattr(error, "errno", None):  # the disk's or the network's doing
                        raise
                    yield place, TORN
                    return
                if not line:
                    return
                fits = line.endswith(b"\n") or len(line) < LINE_BYTES
                length = len(line) + (0 if fits else _skip_line(stream))
                yield place, line if fits else None
                place += length
    except FileNotFoundError:
        raise DataError(f"{piece.path}: gone since the stage began") from None


def _skip_line(stream: BinaryIO) -> int:
    """Read to the end of the line; how many bytes that was."""
    skipped = 0
    while part := stream.readline(LINE_BYTES):
        skipped += len(part)
        if part.endswith(b"\n"):
            break
    return skipped


@contextmanager
def unpack_file(path: str, packed: BinaryIO) -> Iterator[BinaryIO]:
    """The bytes of the open file `packed`, whose `path` tells how it is packed."""
    if path.endswith(".gz"):
        with gzip.open(packed, "rb") as stream:
            yield cast(BinaryIO, stream)
    elif path.endswith(".zst"):
        import pyarrow as pa

        with pa.CompressedInputStream(pa.PythonFile(packed, "r"), "zstd") as stream:
            yield cast(BinaryIO, io.BufferedReader(stream))
    else:
        yield packed


JSONL_ENDINGS = tuple(
    name + packing for name in (".jsonl", ".ndjson", ".json") for packing in ("", ".gz", ".zst")
)
FORMATS: Mapping[str, Format] = {
    "JSONL": Format(JSONL_ENDINGS, _cut_jsonl, _read_jsonl, _peek),
    "Parquet": Format((".parquet",), _cut_parquet, _read_parquet),
    "Arrow": Format((".arrow",), _cut_arrow, _read_arrow),
}
