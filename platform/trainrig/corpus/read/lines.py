"""Reads the lines of a text file or of a part of it, without holding overlong lines in memory."""

from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from trainrig.corpus.read.raw_page import LARGEST_BODY

_BLOCK = 2**16  # bytes


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
        text = stream.readline(LARGEST_BODY + 1)
        if not text:
            return
        if len(text) <= LARGEST_BODY:
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
