"""Reads text files and saved pages: a document per file, line, or block up to a blank line."""

import codecs
import io
from collections.abc import Iterator
from typing import Any, BinaryIO, cast
from urllib.parse import quote

from trainrig.corpus.read.encoding import HEAD, find_encoding, is_wide
from trainrig.corpus.read.lines import Line, iterate_lines
from trainrig.corpus.read.raw_page import LARGEST_BODY, RawPage, Unreadable
from trainrig.corpus.read.settings import ReadSettings
from trainrig.corpus.read.web_archives.packed import Unpacked

_BLOCK = 2**16  # bytes
_BACK = 2**12  # bytes read at a time when searching backwards
_SPACE = b" \t\r\n\v\f"


def read_page(stream: BinaryIO, name: str, base_url: str) -> Iterator[RawPage | Unreadable]:
    """Read a file that is one HTML page. Reasons: "too_large", "truncated", "damaged_gzip" etc."""
    yield _read_whole(stream, name, base_url, "text/html", None)


def read_text(
    stream: BinaryIO, name: str, reading: ReadSettings, begin: int = 0, end: int | None = None
) -> Iterator[RawPage | Unreadable]:
    """Read the documents that begin in [begin, end); a compressed file is read whole.

    Reasons of Unreadable: "not_text", "too_large"; for a compressed file also "truncated",
    "damaged_gzip" and the like.
    """
    head = Unpacked(stream).read(HEAD)
    encoding = reading.encoding or find_encoding(head)
    stream.seek(0)
    if encoding is None:
        if begin == 0:
            yield Unreadable(name, "not_text")
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
            yield Unreadable(f"{name}: {reading.documents} at byte {start}", "too_large")
        elif text.strip():
            yield RawPage(url, "text/plain", text.rstrip(b"\r\n"), "", encoding)
    if unpacked is not None and unpacked.reason:
        yield Unreadable(name, unpacked.reason)


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
        self.size += LARGEST_BODY + 1 if line is None else len(line)
        if line is None or self.size > LARGEST_BODY:
            self._lines.clear()
        else:
            self._lines.append(line)

    def to_line(self) -> Line:
        return Line(self.start, b"".join(self._lines) if self.size <= LARGEST_BODY else None)


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
) -> RawPage | Unreadable:
    unpacked = Unpacked(stream)
    body = unpacked.read(LARGEST_BODY + 1)
    if len(body) > LARGEST_BODY:
        return Unreadable(name, "too_large")
    if unpacked.reason:
        return Unreadable(name, unpacked.reason)
    return RawPage(_build_url(base_url, name), content_type, body, "", encoding)


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
