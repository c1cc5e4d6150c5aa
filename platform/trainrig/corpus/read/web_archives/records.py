"""The records of an archive, one behind another in a stream of unpacked bytes."""

import re
from dataclasses import dataclass
from typing import Any, BinaryIO, Protocol

from trainrig.corpus.read.raw_page import RawPage

LONGEST_LINE = 2**13  # bytes of a record's first line
_LONGEST_HEAD = 2**15  # bytes of the lines that say what a record is; fastwarc's limit, too
_MOST_LINES = 2**10  # of it
_BLOCK = 2**16  # bytes skipped at a time


class NoRecord(Exception):
    """Something else follows. The argument is the reason to count it by: "bad_head" or "truncated";
    there is none if it cannot have been meant as a record."""


@dataclass(frozen=True)
class RecordHeader:
    """What a record says of itself."""

    length: int  # bytes of its block
    ordinary: bool = False  # what archives are made of, and no page: it passes in silence
    reason: str | None = None  # why it is no page, where the head says so
    fields: Any = None  # what the grammar needs to make a page of it


class ArchiveGrammar(Protocol):
    """What tells one kind of archive from another."""

    start: re.Pattern[bytes]  # a record's first line, with its end
    anywhere: re.Pattern[bytes]  # finds in the midst of a file what `start` matches
    signature: bytes  # what each first line begins with
    many_lines: bool  # a head goes on until a blank line
    apart: bool  # a record begins on a line of its own

    def parse_head(self, head: bytes) -> RecordHeader:
        """What the lines of a head say. Raises NoRecord("bad_head")."""

    def parse_page(self, head: RecordHeader, block: bytes) -> RawPage:
        """The page in a record's block. Raises BadBody with the reason if it holds none."""


class Records:
    """Records read in turn. `start` is where the last one began, counted as `position` is."""

    def __init__(self, stream: BinaryIO, grammar: ArchiveGrammar, position: int = 0) -> None:
        self.start = position
        self.short = False  # whether the stream ended before the last record did
        self._stream, self._grammar = stream, grammar
        self._began = self._position = position
        self._left = 0  # bytes of the last record's block that are still to be read

    def read_next(self) -> RecordHeader | None:
        """The next record's head, or None at the end. Raises NoRecord."""
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
        """The lines from `line` on to a blank one."""
        signature, lines = self._grammar.signature, [line]
        while (line := self._stream.readline(_LONGEST_HEAD)).strip():
            if signature in line and self._grammar.anywhere.search(line):
                raise NoRecord("bad_head")  # another record's first line
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
        """The last record's block, as far as it is there."""
        block = self._stream.read(self._left)
        self._advance(len(block))
        self.short = self._left > 0
        return block

    def skip(self) -> None:
        """Pass over what was not read of the last record."""
        while self._left and (block := self._stream.read(min(self._left, _BLOCK))):
            self._advance(len(block))
        self.short = self._left > 0
        self._left = 0

    def _advance(self, count: int) -> None:
        self._position += count
        self._left -= count
