"""Detects the format of input files, and splits them into pieces: large files cut, small grouped.

    files  = find_files(source.paths)                # files of the patterns
    groups = cut_pieces(files, source.reading)       # one split per group
    task   = {"pieces": [serialise_piece(piece) for piece in group]}   # plain JSON
    for task_piece in task["pieces"]:
        for page in read(from_json(task_piece), source.reading): ...   # RawPage | Unreadable

The format is detected by a file's first bytes or, if they match no format, by its name.

Where a file is cut depends on the file sizes and the run file alone, so outputs that are named
after their piece are the same at any number of workers. Reading all pieces of a file in order gives
the same pages as reading the file at once:

- WARC and ARC, plain or with a gzip member for each record (as crawlers write them), are cut by
  bytes; a piece has the records that begin in it.
- Uncompressed JSONL, and text read by lines or blocks, are cut by bytes in the same way.
- Parquet is cut by row groups.
- Other files (compressed as a whole, an array of JSON, HTML, a text that is one document) are one
  piece.
"""

import dataclasses
import io
import itertools
import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from fastwarc.stream_io import ZstdReader

from trainrig.corpus.read import warc_and_arc
from trainrig.corpus.read.archive_records import is_compressed_by_record
from trainrig.corpus.read.compressed_files import GZIP_MAGIC as GZIP_MAGIC
from trainrig.corpus.read.compressed_files import ZSTD_MAGIC, Plain, WholeFile, find_unpacking
from trainrig.corpus.read.input_files import NAMES, File, format_by_name, read_first_bytes
from trainrig.corpus.read.json_rows import begins_spread_object, is_array
from trainrig.corpus.read.page_types import HTML
from trainrig.corpus.read.raw_pages import Format, ReadSettings
from trainrig.corpus.read.text_files import is_wide
from trainrig.errors import DataError

_HEAD_BYTES = 2**14  # bytes at the start that are examined
# Bytes at the start in which to look for a second gzip member; the smaller number nearly always
# suffices.
_MEMBER_SEARCH_BYTES = (2**18, 2**24)


def detect_format(file: File) -> Format:
    """Detect the format of `file`. Raises DataError, with a remedy, if it is unknown."""
    head = read_first_bytes(file.path, _HEAD_BYTES)
    unpacked = unpack_head(head)
    by_name = format_by_name(file.name)
    format_ = _detect_format_by_content(unpacked) or by_name
    if by_name in (None, "json", "jsonl") and is_array(unpacked):
        format_ = "json"
    elif by_name == "json" and format_ == "json" and not begins_spread_object(unpacked):
        format_ = "jsonl"  # the first line has no object, or a damaged one
    if format_ is None:
        raise DataError(
            f"{file.path}: unknown format: the file begins with {head[:24]!r}, and its name "
            f"has no known ending; set `format` to one of {', '.join(NAMES)}, or remove the file "
            "from `paths`"
        )
    return cast(Format, format_)


def can_be_cut(path: str, format_: Format, reading: ReadSettings) -> bool:
    """Return whether a part of the file can be read without the bytes before it.

    For Parquet the result is False: it is divided by row groups instead.
    """
    head = read_first_bytes(path, _HEAD_BYTES)
    if format_ in ("warc", "arc"):
        grammar = warc_and_arc.WARC_GRAMMAR if format_ == "warc" else warc_and_arc.ARC_GRAMMAR
        if head.startswith(GZIP_MAGIC):
            return any(
                is_compressed_by_record(io.BytesIO(read_first_bytes(path, count)), grammar)
                for count in _MEMBER_SEARCH_BYTES
            )
        return find_unpacking(head) is Plain
    if find_unpacking(head) is not Plain or is_wide(head, reading.encoding):
        return False
    return format_ == "jsonl" or (format_ == "text" and reading.documents != "file")


def unpack_head(head: bytes) -> bytes:
    """Decompress the start of a file's first bytes if they are compressed."""
    if head.startswith(GZIP_MAGIC):
        try:
            return zlib.decompressobj(31).decompress(head, _HEAD_BYTES)
        except zlib.error:
            return b""
    if head.startswith(ZSTD_MAGIC):
        try:
            return ZstdReader(io.BytesIO(head)).read(_HEAD_BYTES)
        except OSError:  # one block may be larger than the head
            return b""
    unpacking = find_unpacking(head)
    if issubclass(unpacking, WholeFile):  # the head of one block may not be enough
        return unpacking(io.BytesIO(head)).open_stream().read(_HEAD_BYTES)
    return head


def _detect_format_by_content(head: bytes) -> Format | None:
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if head.startswith(b"PAR1"):
        return "parquet"
    if warc_and_arc.WARC_GRAMMAR.start.match(text):
        return "warc"
    if warc_and_arc.ARC_GRAMMAR.start.match(text):
        return "arc"
    if HTML.match(text):
        return "html"
    return "jsonl" if text.startswith(b"{") and _is_object(text) else None


def _is_object(text: bytes) -> bool:
    """Return whether the first line is a JSON object, or the start of one longer than the head."""
    line, end, _ = text.partition(b"\n")
    if not end:
        return re.match(rb'\{\s*("|\}\s*$)', line) is not None
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


_Item = TypeVar("_Item")

PIECES = 256  # number of pieces per source, within the limits of a piece's size:
SMALLEST_PIECE = 4 * 2**20  # bytes
LARGEST_PIECE = 64 * 2**20  # bytes
OPENING = 2**14  # cost of opening a file, as the bytes that could be read in that time
_THREADS = 8  # threads that read first bytes; S3 answers each request after some 30 ms


@dataclass(frozen=True)
class InputPiece:
    """A file, or a part of one; `begin` and `end` are byte offsets, or row groups of Parquet."""

    path: str
    name: str  # name for output: the path below the fixed part of the pattern
    format: Format
    begin: int = 0
    end: int | None = None  # None: to the end of the file


def serialise_piece(piece: InputPiece) -> dict[str, Any]:
    """Return `piece` as plain JSON values."""
    return dataclasses.asdict(piece)


def from_json(values: Mapping[str, Any]) -> InputPiece:
    """Return the piece of `values` that `serialise_piece` returned."""
    return InputPiece(**values)


def cut_pieces(files: Sequence[File], reading: ReadSettings) -> list[list[InputPiece]]:
    """Split `files` into groups of pieces of similar size, in order.

    Reads the first bytes of each file (the last of a Parquet file). Raises DataError for a file of
    unknown format.
    """
    size = reading.piece_bytes or choose_piece_size(files)
    with ThreadPoolExecutor(_THREADS) as threads:
        cut = list(threads.map(lambda file: _cut_file(file, reading, size), files))
    pieces = itertools.chain.from_iterable(cut)
    groups = _iterate_runs(pieces, lambda piece: piece[1] + OPENING, size)
    return [[piece for piece, _ in group] for group in groups]


def choose_piece_size(files: Sequence[File]) -> int:
    """Return the approximate bytes of a piece of `files` if the run file does not set them."""
    share = sum(file.bytes for file in files) // PIECES
    return min(max(share, SMALLEST_PIECE), LARGEST_PIECE)


def _cut_file(file: File, reading: ReadSettings, size: int) -> list[tuple[InputPiece, int]]:
    """Split one file into pieces; return each with its size in bytes."""
    format_ = reading.format or detect_format(file)
    whole = InputPiece(file.path, file.name, format_)
    number = round(file.bytes / size)
    if number < 2:
        return [(whole, file.bytes)]
    if format_ == "parquet":
        from trainrig.corpus.read.parquet_files import measure_row_groups  # loads pyarrow

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
    for group in _iterate_runs(bytes_of, int, size):
        piece = dataclasses.replace(whole, begin=begin, end=begin + len(group))
        found.append((piece, sum(group)))
        begin += len(group)
    return found or [(whole, 0)]


def _iterate_runs(
    items: Iterable[_Item], weigh: Callable[[_Item], int], limit: int
) -> Iterator[list[_Item]]:
    """Yield runs of neighbours that together weigh at most `limit`."""
    run: list[_Item] = []
    filled = 0
    for item in items:
        weight = weigh(item)
        if run and filled + weight > limit:
            yield run
            run = []
            filled = 0
        run.append(item)
        filled += weight
    if run:
        yield run
