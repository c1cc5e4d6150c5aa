"""Reads archives of records, WARC or ARC, plain or compressed, whole or in pieces.

A *start* is a position where a record can be read without the bytes before it: its first byte in a
plain file, or the first byte of its gzip member in a compressed one. A piece of an archive owns the
starts in its range: their records, and everything up to the next start. Reading depends on the
position alone, so the pieces of a file give the same pages as the whole file.

Damage costs only the record that it is in. Reading resumes at the next recognisable start.
"""

import abc
import re
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, Protocol

from trainrig.corpus.read import compressed_files
from trainrig.corpus.read.http_responses import BadBody
from trainrig.corpus.read.raw_pages import LARGEST_BODY, RawPage, Unreadable

LONGEST_LINE = 2**13  # bytes of a record's first line
_LONGEST_HEAD = 2**15  # bytes of a record's header lines; also fastwarc's limit
_MOST_LINES = 2**10  # header lines
_SKIP_BLOCK = 2**16  # bytes skipped at a time


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
        while self._left and (block := self._stream.read(min(self._left, _SKIP_BLOCK))):
            self._advance(len(block))
        self.short = self._left > 0
        self._left = 0

    def _advance(self, count: int) -> None:
        self._position += count
        self._left -= count


# A record may contain an archive, whose records look like starts. So reading a piece begins this
# many bytes before it, where the outer record is recognised as such.
LOOK_BACK = 2 * 2**20
_SEARCH_BLOCK = 2**20  # bytes read at a time when searching for the next record
_BUFFER = 2**16  # bytes

_Found = RawPage | Unreadable
_Start = int | None
_Owned = Generator[_Found, None, _Start]


def read_archive(
    stream: BinaryIO,
    name: str,
    grammar: ArchiveGrammar,
    magic: bytes,
    begin: int = 0,
    end: int | None = None,
) -> Iterator[_Found]:
    """Yield the pages of the records that begin in [begin, end), and the unreadable records.

    `magic` is the first bytes of the file. A file compressed as one stream has a single start, at
    0.

    Pages of a WARC file are `response` records with HTTP status 200 or 203 (or 206, if it has the
    whole page), `resource` and `conversion` (WET) records. Requests, warcinfo and metadata records
    are skipped silently.

    Reasons: "not_an_archive" (no record at all), "not_a_record" (something else between records),
    "bad_head", "revisit", "continuation", "unknown_type", "not_http_200", "not_http", "not_a_page"
    (DNS answers and the like), "truncated", "wrong_content_length" (the next record is not where
    this one should end), "damaged_gzip", "damaged_zstd", "damaged_bzip2", "damaged_xz",
    "zstd_window_too_large" (packed with `--long`; unpack such a file by `zstd -d --long=31` first),
    "bad_chunks", "bad_content_encoding", "partial_content", "too_large".
    """
    unpacking = compressed_files.find_unpacking(magic)
    if issubclass(unpacking, compressed_files.WholeFile):
        yield from _iterate_records(unpacking(stream), name, grammar) if begin == 0 else ()
    elif magic.startswith(compressed_files.GZIP_MAGIC):
        yield from _PackedArchive(stream, name, grammar).read(begin, end)
    else:
        yield from _PlainArchive(stream, name, grammar).read(begin, end)


def is_compressed_by_record(stream: BinaryIO, grammar: ArchiveGrammar) -> bool:
    """Return whether a second gzip member, after the first, starts a record."""
    return compressed_files.find_member(stream, 1, _build_start_test(grammar)) is not None


def _build_start_test(grammar: ArchiveGrammar) -> Callable[[bytes], bool]:
    return lambda unpacked: grammar.start.match(unpacked.lstrip()) is not None


class _Archive(abc.ABC):
    def __init__(self, stream: BinaryIO, name: str, grammar: ArchiveGrammar) -> None:
        self.stream = stream
        self.name = name
        self.grammar = grammar

    def read(self, begin: int, end: int | None) -> Iterator[_Found]:
        """Read everything that the starts in [begin, end) own."""
        at: _Start
        if begin <= LOOK_BACK:
            at, reason = self.find_first()
            if begin == 0 and (at is None or reason):
                yield Unreadable(self.name, "not_an_archive" if at is None else str(reason))
        else:
            at = self.find(begin - LOOK_BACK)
        while at is not None and (end is None or at < end):
            at = yield from self.iterate_own(at, begin, end)

    @abc.abstractmethod
    def find_first(self) -> tuple[_Start, str | None]:
        """Return the first start, and the reason for anything unreadable before it."""

    @abc.abstractmethod
    def find(self, position: int) -> _Start:
        """Return the first recognisable start at or after `position`, or None."""

    @abc.abstractmethod
    def iterate_own(self, at: int, begin: int, end: int | None) -> _Owned:
        """Read what the starts from `at` own, if in [begin, end); return the next start."""


class _PlainArchive(_Archive):
    def find_first(self) -> tuple[_Start, str | None]:
        at = self.find(0)
        self.stream.seek(0)
        blank = at is not None and at < LONGEST_LINE and not self.stream.read(at).strip()
        return at, None if blank else "not_a_record"

    def find(self, position: int) -> _Start:
        self.stream.seek(position)
        if position == 0 and self.grammar.start.match(self.stream.read(LONGEST_LINE)):
            return 0
        # a byte earlier, as the start of a line is recognised by the line end before it
        kept = b""
        at = max(0, position - 1)
        while True:
            self.stream.seek(at + len(kept))
            more = self.stream.read(_SEARCH_BLOCK)
            block = kept + more
            # A line that may be truncated at the block's end is searched again with the next block.
            last = len(block) - LONGEST_LINE if more else len(block)
            for match in self.grammar.anywhere.finditer(block):
                if position <= at + match.start() and match.start() < last:
                    return at + match.start()
            if not more:
                return None
            kept = block[-LONGEST_LINE - 1 :]
            at += len(block) - len(kept)

    def iterate_own(self, at: int, begin: int, end: int | None) -> _Owned:
        self.stream.seek(at)
        records = Records(self.stream, self.grammar, at)
        # One record is held back, since only the bytes after it show whether its length is right.
        held: _Found | None = None
        while True:
            before = records.start
            try:
                head = records.read_next()
            except NoRecord as none:
                if not none.args:
                    held = self.build_unreadable(before, "wrong_content_length")
                if held and before >= begin:
                    yield held
                if none.args and end is not None and records.start >= end:
                    return None
                if none.args and records.start >= begin:
                    yield self.build_unreadable(records.start, str(none))
                return self.find(records.start + 1)
            if head is None and records.short:
                following = self.find(before + 1)
                if before >= begin:
                    reason = "truncated" if following is None else "wrong_content_length"
                    yield self.build_unreadable(before, reason)
                return following
            if held:
                yield held
            if head is None or (end is not None and records.start >= end):
                return None
            held = self.classify_record(records, head) if records.start >= begin else None

    def build_unreadable(self, position: int, reason: str) -> Unreadable:
        return Unreadable(f"{self.name}: record at byte {position}", reason)

    def classify_record(self, records: Records, head: RecordHeader) -> _Found | None:
        return _classify_record(
            records, self.grammar, head, f"{self.name}: record at byte {records.start}"
        )


class _PackedArchive(_Archive):
    def __init__(self, stream: BinaryIO, name: str, grammar: ArchiveGrammar) -> None:
        super().__init__(stream, name, grammar)
        self.packed = compressed_files.Packed(stream, 0)
        self.starts = _build_start_test(grammar)
        self.opened: compressed_files.Member | None = (
            None  # opened by `find_next_start`, not read yet
        )

    def find_first(self) -> tuple[_Start, str | None]:
        self.packed.move(0)
        return self.find_next_start()

    def find(self, position: int) -> _Start:
        return compressed_files.find_member(self.stream, position, self.starts)

    def iterate_own(self, at: int, begin: int, end: int | None) -> _Owned:
        member = self.opened
        if member is None or member.start != at:
            self.packed.move(at)
            member = compressed_files.Member(self.packed)
        if at >= begin:
            yield from _iterate_records(member, self.name, self.grammar)
        member.drain()
        if member.state != "whole":
            return self.find(at + 1)
        following, reason = self.find_next_start()
        if reason and at >= begin:
            yield Unreadable(f"{self.name}: after the record at byte {at}", reason)
        return following

    def find_next_start(self) -> tuple[_Start, str | None]:
        """Return the next start from the current position, and a reason for what precedes it."""
        reason = None
        while magic := self.packed.peek(len(compressed_files.GZIP_MAGIC)):
            at = self.packed.position
            if magic != compressed_files.GZIP_MAGIC:
                cut = compressed_files.GZIP_MAGIC.startswith(magic)
                return self.find(at + 1), reason or ("truncated" if cut else "damaged_gzip")
            member = compressed_files.Member(self.packed)
            if self.starts(member.head):
                self.opened = member
                return at, reason
            # A member with something other than a record; it is ignored if it is blank.
            blank = True
            while block := member.read(_BUFFER):
                blank = blank and not block.strip()
            if member.state != "whole":
                reason = reason or ("truncated" if member.state == "cut" else "damaged_gzip")
                return self.find(at + 1), reason
            if not blank:
                reason = reason or "not_a_record"
        return None, reason


def _iterate_records(
    stream: compressed_files.Member | compressed_files.WholeFile, name: str, grammar: ArchiveGrammar
) -> Iterator[_Found]:
    """Yield the records of one compressed stream, usually one; the stream is read to its end."""
    records = Records(stream.open_stream(), grammar)
    held: _Found | None = None
    number = 0
    begun = ""
    lost = False
    try:
        while (head := records.read_next()) is not None:
            if held:
                yield held
            number += 1
            held = _classify_record(records, grammar, head, _describe_place(name, stream, number))
    except NoRecord as none:
        begun = str(none)
        lost = not none.args
    short = records.short
    stream.drain()
    last = _describe_place(name, stream, max(1, number))
    if stream.state == "broken":
        yield Unreadable(last, stream.damage)
    elif short or (lost and number):
        yield Unreadable(last, "truncated" if stream.state == "cut" else "wrong_content_length")
    else:
        if held:
            yield held
        # A stream truncated after its only record has lost nothing but the separator of records.
        if begun or number == 0 or (stream.state == "cut" and number > 1):
            reason = "truncated" if stream.state == "cut" else begun or "not_a_record"
            yield Unreadable(_describe_place(name, stream, number + 1), reason)


def _describe_place(
    name: str, stream: compressed_files.Member | compressed_files.WholeFile, number: int
) -> str:
    if number == 1:
        return f"{name}: record at byte {stream.start}"
    return f"{name}: record {number} of those packed together at byte {stream.start}"


def _classify_record(
    records: Records, grammar: ArchiveGrammar, head: RecordHeader, where: str
) -> _Found | None:
    """Return the record as a page or as Unreadable; None if it has no page, or is truncated."""
    if head.ordinary:
        return None
    if head.reason or head.length > LARGEST_BODY:
        return Unreadable(where, head.reason or "too_large")
    block = records.read_block()
    if records.short:
        return None
    try:
        return grammar.parse_page(head, block)
    except BadBody as bad:
        return Unreadable(where, str(bad))
