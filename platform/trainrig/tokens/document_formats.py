"""File formats of documents: where a file can be cut into parts, and how its rows are read.

Each format cuts a file into parts that different workers can read (`cut`), and reads the rows of a
part in batches (`read`), so that no file is ever in memory as a whole.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import itertools
import lzma
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from trainrig import storage
from trainrig.config import suggest_choice
from trainrig.corpus.read.input_files import PACKED, read_first_bytes
from trainrig.corpus.read.json_rows import (
    begins_spread_object,
    is_array,
    iterate_values,
    parse_object,
)
from trainrig.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq


# pyarrow is imported where files are opened: reading a run file does not need it.

BATCH_ROWS = 1_024  # rows decoded at a time
LINE_BYTES = 2**28  # a longer line is refused instead of being held in memory
PEEKED_LINES = 100  # lines of a JSONL file that are read to see which columns exist
# Assumed compression ratio of text: a compressed file counts for this many times its size when the
# work is divided among workers.
UNPACKED = 3
_HEAD_BYTES = 2**14  # bytes at the start of a file that show whether it has a row on each line

Row = Mapping[str, Any] | str  # a row, or the reason why it cannot be read
Rows = Iterator[tuple[int, Row]]  # (position in the file, row)


@dataclass(frozen=True)
class FilePart:
    """A part of a file that can be read independently of the rest."""

    begin: int  # row group (Parquet) or byte (JSON lines)
    end: int
    weight: int  # approximate bytes of text
    whole: bool  # True if the part is the entire file


@dataclass(frozen=True)
class StagePart:
    """A part of one of the files that a run reads; all values can be written as JSON."""

    table: int  # index of the `[[documents]]` table in the run file that names the file
    path: str
    file: str  # short name of the file in the output (`name_files`)
    begin: int
    end: int
    weight: int
    whole: bool


@dataclass(frozen=True)
class Format:
    """Functions that read one kind of file."""

    endings: tuple[str, ...]  # suffixes of the files that are read from a folder
    # (path, columns, maximum bytes of a part) -> parts. The first column is the text. No columns
    # means all, in every function of this module.
    cut: Callable[[str, Sequence[str], int], list[FilePart]]
    read: Callable[[StagePart, Sequence[str]], Rows]
    # (path, columns): checks in the first rows that the columns exist, for formats in which each
    # row has its own columns; None: `cut` checks every file's schema.
    peek: Callable[[str, Sequence[str]], None] | None = None


def name_place(file: str, place: int) -> str:
    """Return a row's position for messages, such as "a.jsonl, byte 5,812" or "a.parquet, row 7"."""
    by_byte = file.endswith(JSONL_ENDINGS)
    return f"{file}, {'byte' if by_byte else 'row'} {place:,}"


def _check_columns(path: str, columns: Sequence[str], there: Sequence[str]) -> None:
    for column in columns:
        if column not in there and column.partition(".")[0] not in there:
            raise DataError(f"{path}: no column '{column}'{suggest_choice(column, there)}")


@contextmanager
def _report_damage(path: str, kind: str) -> Iterator[None]:
    """Raise DataError if the code in the block finds that the file is damaged or not of `kind`."""
    import pyarrow as pa

    try:
        yield
    except FileNotFoundError:
        raise DataError(f"{path}: deleted since the stage began; restore the file") from None
    except (pa.ArrowException, UnicodeDecodeError, OSError) as error:
        if getattr(error, "errno", None):  # an error of the disk or the network
            raise
        found = " ".join(str(error).split())
        raise DataError(
            f"{path}: not {kind}, or damaged ({found}); download or write the file again"
        ) from None


# Parquet


@contextmanager
def _open_parquet(path: str) -> Iterator[pq.ParquetFile]:
    import pyarrow.parquet as pq

    damage = _report_damage(path, "Parquet")
    with damage, storage.open_for_arrow(path) as stream, pq.ParquetFile(stream) as file:
        yield file


def _cut_parquet(path: str, columns: Sequence[str], part_bytes: int) -> list[FilePart]:
    """Return parts of adjacent row groups, of at most `part_bytes` each or of a single group."""
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
    begin = 0
    held = 0
    for number, weight in enumerate(weights):
        if held and held + weight > part_bytes:
            cuts.append(FilePart(begin, number, held, whole=False))
            begin = number
            held = 0
        held += weight
    return [*cuts, FilePart(begin, len(weights), held, whole=not cuts)]


def _read_parquet(piece: StagePart, columns: Sequence[str]) -> Rows:
    for place, batch in read_parquet_batches(piece, columns):
        yield from enumerate(iterate_rows(batch, piece.path), place)


def read_parquet_batches(
    piece: StagePart, columns: Sequence[str] = ()
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield (position of its first row, Arrow record batch) for a part of a Parquet file."""
    with _open_parquet(piece.path) as file:
        groups = range(piece.begin, piece.end)
        place = sum(file.metadata.row_group(number).num_rows for number in range(piece.begin))
        for batch in file.iter_batches(
            BATCH_ROWS, list(groups), _list_outer_columns(columns, file.schema_arrow)
        ):
            yield place, batch
            place += len(batch)


def _list_outer_columns(columns: Sequence[str], schema: pa.Schema) -> list[str]:
    """Return the top-level columns of the file that contain `columns`, or all if none are given."""
    if not columns:
        return list(schema.names)
    names = (name if name in schema.names else name.partition(".")[0] for name in columns)
    return list(dict.fromkeys(names))


def iterate_rows(batch: pa.RecordBatch, path: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of `batch` as dicts of Python values.

    Raises DataError, naming `path`, for damage that Arrow does not detect: text is decoded here.
    """
    names = batch.schema.names
    with _report_damage(path, "complete"):
        # Converting each column is three times as fast as `to_pylist` of the whole batch.
        columns = [column.to_pylist() for column in batch.columns]
    for values in zip(*columns, strict=True):
        yield dict(zip(names, values, strict=True))


# Arrow


@contextmanager
def _open_arrow(path: str) -> Iterator[tuple[pa.Schema, Iterator[pa.RecordBatch]]]:
    """Open an IPC stream or file; yield its schema and an iterator over its record batches."""
    import pyarrow as pa

    with _report_damage(path, "an Arrow stream or file"), ExitStack() as stack:
        if storage.is_remote(path):
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
    """Return the whole file as one part: a stream has no table of contents for finding others."""
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
                part.validate(full=True)  # a damaged offset would point outside the file
                yield from enumerate(iterate_rows(part, piece.path), place + start)
            place += len(batch)


# JSON lines


def _cut_jsonl(path: str, columns: Sequence[str], part_bytes: int) -> list[FilePart]:
    """Return byte ranges of equal size; a part has the lines that begin in its range.

    A compressed file cannot be divided, nor can an array: each is a single part.
    """
    size = storage.measure_size(path)
    if path.endswith(PACKED):
        return [FilePart(0, size, size * UNPACKED, whole=True)]
    if _may_contain_values(path) and _contains_values(read_first_bytes(path, _HEAD_BYTES)):
        return [FilePart(0, size, size, whole=True)]
    parts = max(1, -(-size // part_bytes))
    ends = [size * number // parts for number in range(parts + 1)]
    return [
        FilePart(begin, end, end - begin, whole=parts == 1)
        for begin, end in itertools.pairwise(ends)
    ]


def _peek(path: str, columns: Sequence[str]) -> None:
    """Raise DataError if one of `columns` is missing in all of the file's first rows."""
    whole = StagePart(0, path, path, 0, storage.measure_size(path), 0, whole=True)
    first = itertools.islice(_read_jsonl(whole, ()), PEEKED_LINES)
    rows = [row for _, row in first if isinstance(row, Mapping)]
    there = list(dict.fromkeys(name for row in rows for name in row))
    if rows:
        _check_columns(path, columns, there)


TORN = b""  # stands for the rest of a compressed file that is truncated or damaged


def _read_jsonl(piece: StagePart, columns: Sequence[str]) -> Rows:
    del columns  # each line is parsed completely
    for place, line in _read_lines(piece):
        if line is None:
            yield place, "line_too_long"
        elif line == TORN:
            yield place, "torn_file"
        elif not line.isspace():
            row = parse_object(line.removeprefix(codecs.BOM_UTF8) if place == 0 else line)
            yield place, "not_json" if row == "bad_json" else row


def _may_contain_values(path: str) -> bool:
    """Return whether the file may have an array, or objects over several lines: by its name.

    The name .jsonl says that there is a row on each line, so that a torn one is refused alone.
    """
    packing = next((ending for ending in PACKED if path.endswith(ending)), "")
    return path.removesuffix(packing).endswith(".json")


def _contains_values(head: bytes) -> bool:
    """Return whether a file that begins with `head` has an array, or objects over several lines."""
    return is_array(head) or begins_spread_object(head)


def _read_lines(piece: StagePart) -> Iterator[tuple[int, bytes | None]]:
    """Yield (position, line) for each line that begins in the part; None for a line too long.

    Positions are in bytes, of the decompressed content if the file is compressed.
    """
    try:
        with storage.open_read(piece.path) as packed, unpack_file(piece.path, packed) as stream:
            place = piece.begin
            end = None if stream is not packed else piece.end
            if piece.whole and _may_contain_values(piece.path):
                head = _peek_head(stream, packed)
                if head is None:
                    yield place, TORN
                    return
                if _contains_values(head):
                    yield from _iterate_whole_values(stream)
                    return
            if place > 0:  # a line that begins before this part belongs to the part before
                # From the last byte before: if it ends a line, the part's own first line is kept.
                stream.seek(place - 1)
                place += _skip_line(stream) - 1
            while end is None or place < end:
                try:
                    line = stream.readline(LINE_BYTES)
                except (EOFError, zlib.error, lzma.LZMAError, OSError) as error:
                    if getattr(error, "errno", None):  # an error of the disk or the network
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
        raise DataError(f"{piece.path}: deleted since the stage began; restore the file") from None


def _peek_head(stream: BinaryIO, packed: BinaryIO) -> bytes | None:
    """Return the first bytes of a stream, which stays at its start; None if it is damaged there."""
    if stream is packed:
        head = stream.read(_HEAD_BYTES)
        stream.seek(0)
        return head
    try:
        return cast(io.BufferedReader, stream).peek(_HEAD_BYTES)
    except (EOFError, zlib.error, lzma.LZMAError, OSError) as error:
        if getattr(error, "errno", None):
            raise
        return None


def _iterate_whole_values(stream: BinaryIO) -> Iterator[tuple[int, bytes | None]]:
    """Yield the objects of an array, or objects over several lines, with their positions."""
    try:
        yield from iterate_values(stream, LINE_BYTES)
    except (EOFError, zlib.error, lzma.LZMAError, OSError) as error:
        if getattr(error, "errno", None):
            raise
        yield stream.tell(), TORN


def _skip_line(stream: BinaryIO) -> int:
    """Read to the end of the line; return the number of bytes read."""
    skipped = 0
    while part := stream.readline(LINE_BYTES):
        skipped += len(part)
        if part.endswith(b"\n"):
            break
    return skipped


@contextmanager
def unpack_file(path: str, packed: BinaryIO) -> Iterator[BinaryIO]:
    """Open the decompressed content of the open file `packed`, by the suffix of `path`."""
    if path.endswith(".gz"):
        with gzip.open(packed, "rb") as stream:
            yield cast(BinaryIO, stream)
    elif path.endswith(".bz2"):
        with bz2.open(packed, "rb") as bzip2_stream:
            yield cast(BinaryIO, bzip2_stream)
    elif path.endswith(".xz"):
        with lzma.open(packed, "rb") as xz_stream:
            yield cast(BinaryIO, xz_stream)
    elif path.endswith((".zst", ".zstd")):
        import pyarrow as pa

        with pa.CompressedInputStream(pa.PythonFile(packed, "r"), "zstd") as stream:
            yield cast(BinaryIO, io.BufferedReader(stream))
    else:
        yield packed


JSONL_ENDINGS = tuple(
    name + packing for name in (".jsonl", ".ndjson", ".json") for packing in ("", *PACKED)
)
FORMATS: Mapping[str, Format] = {
    "JSONL": Format(JSONL_ENDINGS, _cut_jsonl, _read_jsonl, _peek),
    "Parquet": Format((".parquet",), _cut_parquet, _read_parquet),
    "Arrow": Format((".arrow",), _cut_arrow, _read_arrow),
}
