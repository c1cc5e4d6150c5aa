"""Splits a stream of decompressed bytes into the records of an archive."""

import re
from dataclasses import dataclass
from typing import Any, BinaryIO, Protocol

from trainrig.corpus.read.raw_page import RawPage

LONGEST_LINE = 2**13  # bytes of a record's first line
_LONGEST_HEAD = 2**15  # bytes of a record's header lines; also fastwarc's limit
_MOST_LINES = 2**10  # header lines
_BLOCK = 2**16  # bytes skipped at a time


class NoRecord(Exception):
    """Raised where no record follows.

    The argument is the reason to count: "bad_head" or "truncated". There is none if the bytes do
    not look like a record at all.
    """


@dataclass(frozen=True)
class RecordHeader:
    """The parsed header of a record."""

    length: int  # bytes of its block
    # True if archives consist of such records besides pages; they are skipped silently
    ordinary: bool = False
    reason: str | None = None  # why the record is not a page, if the header shows it
    fields: Any = None  # data that the grammar needs to build a page


class ArchiveGrammar(Protocol):
    """The properties in which kinds of archives differ."""

    start: re.Pattern[bytes]  # first line of a record, with its line end
    anywhere: re.Pattern[bytes]  # finds what `start` matches in the middle of a file
    signature: bytes  # prefix of every first line
    many_lines: bool  # True if a header continues up to a blank line
    apart: bool  # True if a record begins on a new line

    def parse_head(self, head: bytes) -> RecordHeader:
        """Parse the header lines. Raises NoRecord("bad_head") if they are invalid."""

    def parse_page(self, head: RecordHeader, block: bytes) -> RawPage:
        """Build the page of a record's block. Raises BadBody with the reason if there is none."""


class Records:
    """Sequential reader of records; `start` is the position of the last record."""

    def __init__(self, stream: BinaryIO, grammar: ArchiveGrammar, position: int = 0) -> None:
        self.start = position
        self.short = False  # True if the stream ended inside the last record
        self._stream = stream
        self._grammar = grammar
        self._began = self._position = position
        self._left = 0  # unread bytes of the last record's block

    def read_next(self) -> RecordHeader | None:
        """Read the next record's header, or return None at the end. Raises NoRecord."""
        self.skip()
        apart = self._position == self._began or not self._grammar.apart
        while not (line := self._stream.readline(LONGEST_LINE)).strip():
            if not line:
                return None
            self._position += len(line)
            apart = True
        if not apart or not self._grammar.start.match(line):
            signature = self._grammar.signature
            cut = line.startswith(signature) or signature.startswith(line)
            raise NoRecord("truncated") if cut and not line.endswith(b"\n") else NoRecord
        self.start = self._position
        self._position += len(line)
        head = self._grammar.parse_head(self._read_head(line) if self._grammar.many_lines else line)
        self._left = head.length
        return head

    def _read_head(self, line: bytes) -> bytes:
        """Return the header lines from `line` up to a blank one."""
        signature = self._grammar.signature
        lines = [line]
        while (line := self._stream.readline(_LONGEST_HEAD)).strip():
            if signature in line and self._grammar.anywhere.search(line):
                raise NoRecord("bad_head")  # the first line of another record
            lines.append(line)
            if len(lines) > _MOST_LINES:
                raise NoRecord("bad_head")
        head = b"".join(lines)
        self._position = self.start + len(head) + len(line)
        if not line:
            raise NoRecord("truncated")
        if len(head) > _LONGEST_HEAD:
            raise NoRecord("bad_head")
        return head

    def read_block(self) -> bytes:
        """Read the last record's block, or as much of it as exists."""
        block = self._stream.read(self._left)
        self._advance(len(block))
        self.short = self._left > 0
        return block

    def skip(self) -> None:
        """Skip the unread rest of the last record."""
        while self._left and (block := self._stream.read(min(self._left, _BLOCK))):
            self._advance(len(block))
        self.short = self._left > 0
        self._left = 0

    def _advance(self, count: int) -> None:
        self._position += count
        self._left -= count
