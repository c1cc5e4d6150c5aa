"""Text files, JSON lines and saved pages, plain or compressed, and their character encoding.

Text files give a document per file, line, or block up to a blank line. JSON lines have one object a
line, in UTF-8. Overlong lines are not held in memory.
"""

import codecs
import io
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple, cast
from urllib.parse import quote

from resiliparse.parse.encoding import detect_encoding, map_encoding_to_html5

from trainrig.corpus.read import raw_pages
from trainrig.corpus.read.compressed_files import Unpacked
from trainrig.corpus.read.json_rows import JSONValue, iterate_values, parse_object
from trainrig.corpus.read.page_types import find_wide_encoding

ENCODING_HEAD = 2**18  # bytes at the start that are enough to detect the encoding

_UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def find_encoding(head: bytes) -> str | None:
    """Detect the encoding of a file that begins with `head`; return None if it is not text.

    A byte-order mark decides first. Valid UTF-8 is UTF-8, as other text is never valid by chance.
    Other bytes are guessed.
    """
    if head.startswith(_UTF16_MARKS):
        return "utf-16"
    if b"\0" in head:
        return find_wide_encoding(head)
    try:
        codecs.utf_8_decode(head, "strict", False)  # not final: the head may end inside a character
        return "utf-8"
    except UnicodeDecodeError:
        return guess_encoding(head)


def guess_encoding(body: bytes) -> str:
    """Guess the most likely encoding of bytes that are not UTF-8."""
    found = detect_encoding(body, html5_compatible=False) or "cp1252"
    # The web's encoding names lack Korean's superset of EUC-KR; html5_compatible would return
    # UTF-8.
    return str(map_encoding_to_html5(found, fallback_utf8=False) or found)


def is_wide(head: bytes, encoding: str | None) -> bool:
    """Return whether a line end takes several bytes, so that lines cannot be split as bytes."""
    if encoding is None:
        return head.startswith(_UTF16_MARKS) or find_wide_encoding(head[:_WIDE_HEAD]) is not None
    return len("\n".encode(encoding)) > 1


_BLOCK = 2**16  # bytes
_WIDE_HEAD = 2**12  # bytes that are enough to recognise UTF-16 without a byte-order mark


class Line(NamedTuple):
    """A line with its end; `text` is None if the line is longer than LARGEST_BODY."""

    start: int  # byte offset of the line
    text: bytes | None


def iterate_lines(stream: BinaryIO, begin: int = 0, end: int | None = None) -> Iterator[Line]:
    """Yield the lines that begin in [begin, end); an unseekable stream must start at 0."""
    at = begin
    if begin:
        stream.seek(begin - 1)
        at += _skip_line(stream) - 1  # skips the rest of the line before, at least its end
    while end is None or at < end:
        text = stream.readline(raw_pages.LARGEST_BODY + 1)
        if not text:
            return
        if len(text) <= raw_pages.LARGEST_BODY:
            yield Line(at, text)
            at += len(text)
        else:
            yield Line(at, None)
            at += len(text) + (0 if text.endswith(b"\n") else _skip_line(stream))


def _skip_line(stream: BinaryIO) -> int:
    """Skip to after the next line end; return the number of bytes skipped."""
    count = 0
    while text := stream.readline(_BLOCK):
        count += len(text)
        if text.endswith(b"\n"):
            break
    return count


_BACK = 2**12  # bytes read at a time when searching backwards
_SPACE = b" \t\r\n\v\f"


def read_page(
    stream: BinaryIO, name: str, base_url: str
) -> Iterator[raw_pages.RawPage | raw_pages.Unreadable]:
    """Read a file that is one HTML page. Reasons: "too_large", "truncated", "damaged_gzip" etc."""
    yield _read_whole(stream, name, base_url, "text/html", None)


def read_text(
    stream: BinaryIO,
    name: str,
    reading: raw_pages.ReadSettings,
    begin: int = 0,
    end: int | None = None,
) -> Iterator[raw_pages.RawPage | raw_pages.Unreadable]:
    """Read the documents that begin in [begin, end); a compressed file is read whole.

    Reasons of Unreadable: "not_text", "too_large"; for a compressed file also "truncated",
    "damaged_gzip" and the like.
    """
    head = Unpacked(stream).read(ENCODING_HEAD)
    encoding = reading.encoding or find_encoding(head)
    stream.seek(0)
    if encoding is None:
        if begin == 0:
            yield raw_pages.Unreadable(name, "not_text")
        return
    if reading.documents == "file":
        yield _read_whole(stream, name, reading.base_url, "text/plain", reading.encoding)
        return
    source = stream
    unpacked = None
    if begin == 0 and end is None:
        unpacked = Unpacked(stream)
        source = cast(BinaryIO, unpacked)
    if is_wide(head, reading.encoding):
        source = cast(BinaryIO, io.BufferedReader(_Recoded(source, encoding)))
        encoding = "utf-8"
    url = _build_url(reading.base_url, name)
    cut = (
        iterate_lines(source, begin, end)
        if reading.documents == "line"
        else iterate_blocks(source, begin, end)
    )
    for start, text in cut:
        if text is None:
            yield raw_pages.Unreadable(f"{name}: {reading.documents} at byte {start}", "too_large")
        elif text.strip():
            yield raw_pages.RawPage(url, "text/plain", text.rstrip(b"\r\n"), "", encoding)
    if unpacked is not None and unpacked.reason:
        yield raw_pages.Unreadable(name, unpacked.reason)


def iterate_blocks(stream: BinaryIO, begin: int = 0, end: int | None = None) -> Iterator[Line]:
    """Yield blocks of lines up to a blank line, whose first line begins in [begin, end)."""
    skipping = begin > 0 and _begins_inside(stream, begin)
    block = _Block()
    for at, line in iterate_lines(stream, begin):
        if not block.size and end is not None and at >= end:
            return
        if line is not None and not line.strip():
            skipping = False
            if block.size:
                yield block.to_line()
                block = _Block()
        elif not skipping:
            block.add(at, line)
    if block.size:
        yield block.to_line()


class _Block:
    """Lines of one block; the text of an overlong block is not kept."""

    def __init__(self) -> None:
        self.start = self.size = 0
        self._lines: list[bytes] = []

    def add(self, at: int, line: bytes | None) -> None:
        if not self.size:
            self.start = at
        self.size += raw_pages.LARGEST_BODY + 1 if line is None else len(line)
        if line is None or self.size > raw_pages.LARGEST_BODY:
            self._lines.clear()
        else:
            self._lines.append(line)

    def to_line(self) -> Line:
        return Line(
            self.start, b"".join(self._lines) if self.size <= raw_pages.LARGEST_BODY else None
        )


def _begins_inside(stream: BinaryIO, begin: int) -> bool:
    """Return whether the first line at or after `begin` continues a block.

    That is so unless a blank line, or only blank lines, precede it.
    """
    first = next(iterate_lines(stream, begin), None)
    if first is None:
        return True
    at = first.start
    ends = 0
    while at > 0:
        back = min(_BACK, at)
        stream.seek(at - back)
        block = stream.read(back)
        spaces = block[len(block.rstrip(_SPACE)) :]
        ends += spaces.count(b"\n")
        if len(spaces) < len(block) or ends > 1:
            return ends < 2
        at -= back
    return False  # only blank lines before it


def _read_whole(
    stream: BinaryIO, name: str, base_url: str, content_type: str, encoding: str | None
) -> raw_pages.RawPage | raw_pages.Unreadable:
    unpacked = Unpacked(stream)
    body = unpacked.read(raw_pages.LARGEST_BODY + 1)
    if len(body) > raw_pages.LARGEST_BODY:
        return raw_pages.Unreadable(name, "too_large")
    if unpacked.reason:
        return raw_pages.Unreadable(name, unpacked.reason)
    return raw_pages.RawPage(_build_url(base_url, name), content_type, body, "", encoding)


def _build_url(base_url: str, name: str) -> str:
    """Return the file's URL below `base_url`; the default is the root of a file system."""
    return f"{base_url.rstrip('/') or 'file://'}/{quote(name, safe='/~@!$&()*+,;=:')}"


class _Recoded(io.RawIOBase):
    """Stream that converts text of any encoding to UTF-8; undecodable bytes become U+FFFD."""

    def __init__(self, stream: BinaryIO, encoding: str) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder(encoding)("replace")
        self._ready = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            block = self._stream.read(_BLOCK)
            # "replace" leaves half a surrogate pair of UTF-16, which encoding to UTF-8 replaces.
            text = self._decoder.decode(block, final=not block)
            self._ready = text.encode("utf-8", "replace")
            if not block:
                break
        count = min(len(buffer), len(self._ready))
        buffer[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count


_UTF8_MARK = b"\xef\xbb\xbf"


def read_jsonl(
    stream: BinaryIO, name: str, fields: raw_pages.Fields, begin: int = 0, end: int | None = None
) -> Iterator[raw_pages.RawPage | raw_pages.Unreadable]:
    """Read the texts of the lines that begin in [begin, end); a compressed file is read whole.

    Blank lines are skipped. Reasons of Unreadable: "too_large", "not_utf8", "bad_json",
    "not_an_object", and those of `build_page`; once, at the end, "truncated" or damage of a
    compressed stream.
    """
    unpacked = None if begin or end is not None else Unpacked(stream)
    source = stream if unpacked is None else open_utf8(unpacked)
    lines = (JSONValue(start, line) for start, line in iterate_lines(source, begin, end))
    yield from _build_pages(lines, name, "line", fields)
    if unpacked is not None and unpacked.reason:
        yield raw_pages.Unreadable(name, unpacked.reason)


def read_json(
    stream: BinaryIO, name: str, fields: raw_pages.Fields
) -> Iterator[raw_pages.RawPage | raw_pages.Unreadable]:
    """Read the texts of an array of objects, or of objects over several lines, one at a time.

    Reasons of Unreadable: as `read_jsonl`.
    """
    unpacked = Unpacked(stream)
    values = iterate_values(open_utf8(unpacked), raw_pages.LARGEST_BODY)
    yield from _build_pages(values, name, "value", fields)
    if unpacked.reason:
        yield raw_pages.Unreadable(name, unpacked.reason)


def open_utf8(stream: io.BufferedReader) -> BinaryIO:
    """Return the content of `stream`, recoded to UTF-8 if it is UTF-16 with or without a mark."""
    head = stream.peek(_WIDE_HEAD)[:_WIDE_HEAD]
    if not is_wide(head, None):
        return cast(BinaryIO, stream)
    encoding = find_encoding(head) or "utf-16"
    return cast(BinaryIO, io.BufferedReader(_Recoded(cast(BinaryIO, stream), encoding)))


def _build_pages(
    values: Iterator[JSONValue], name: str, unit: str, fields: raw_pages.Fields
) -> Iterator[raw_pages.RawPage | raw_pages.Unreadable]:
    for start, text in values:
        where = f"{name}: {unit} at byte {start}"
        if text is None:
            yield raw_pages.Unreadable(where, "too_large")
            continue
        text = text.removeprefix(_UTF8_MARK) if start == 0 else text
        if text.strip():
            row = parse_object(text)
            if isinstance(row, str):
                yield raw_pages.Unreadable(where, row)
            else:
                yield raw_pages.build_page(row, fields, where)
