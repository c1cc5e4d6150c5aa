"""Detection of a file's format by its first bytes or, if they match no format, by its name."""

import io
import json
import re
import zlib
from typing import cast

from fastwarc.stream_io import ZstdReader

from trainrig.corpus.read.encoding import is_wide
from trainrig.corpus.read.files import NAMES, File, format_by_name, read_first_bytes
from trainrig.corpus.read.settings import Format, ReadSettings
from trainrig.corpus.read.web_archives import arc, warc
from trainrig.corpus.read.web_archives.archive import is_compressed_by_record
from trainrig.corpus.read.web_archives.members import MAGIC as GZIP_MAGIC
from trainrig.corpus.read.web_archives.packed import ZSTD_MAGIC
from trainrig.errors import DataError

_HEAD = 2**14  # bytes at the start that are examined
# Bytes at the start in which to look for a second gzip member; the smaller number nearly always
# suffices.
_MEMBER_SEARCH_BYTES = (2**18, 2**24)

_HTML = re.compile(
    rb"(?:\s|<!--.*?-->|<\?xml[^>]*>)*<(?:!doctype\s+html|html|head|body)\b",
    re.IGNORECASE | re.DOTALL,
)


def recognise(file: File) -> Format:
    """Detect the format of `file`. Raises DataError, with a remedy, if it is unknown."""
    head = read_first_bytes(file.path, _HEAD)
    by_content = _recognise_content(unpack_head(head))
    format_ = by_content or format_by_name(file.name)
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
    head = read_first_bytes(path, _HEAD)
    if format_ in ("warc", "arc"):
        grammar = warc.GRAMMAR if format_ == "warc" else arc.GRAMMAR
        if head.startswith(GZIP_MAGIC):
            return any(
                is_compressed_by_record(io.BytesIO(read_first_bytes(path, count)), grammar)
                for count in _MEMBER_SEARCH_BYTES
            )
        return not head.startswith(ZSTD_MAGIC)
    if head.startswith((GZIP_MAGIC, ZSTD_MAGIC)) or is_wide(head, reading.encoding):
        return False
    return format_ == "jsonl" or (format_ == "text" and reading.documents != "file")


def unpack_head(head: bytes) -> bytes:
    """Decompress the start of a file's first bytes if they are gzip or zstd."""
    if head.startswith(GZIP_MAGIC):
        try:
            return zlib.decompressobj(31).decompress(head, _HEAD)
        except zlib.error:
            return b""
    if head.startswith(ZSTD_MAGIC):
        try:
            return ZstdReader(io.BytesIO(head)).read(_HEAD)
        except OSError:  # one block may be larger than the head
            return b""
    return head


def _recognise_content(head: bytes) -> Format | None:
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if head.startswith(b"PAR1"):
        return "parquet"
    if warc.GRAMMAR.start.match(text):
        return "warc"
    if arc.GRAMMAR.start.match(text):
        return "arc"
    if _HTML.match(text):
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
