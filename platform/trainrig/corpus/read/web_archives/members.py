"""Gzip members (RFC 1952), one behind another: archives have one for each record.

A member is read as a stream of what it holds, never raises for what is wrong with it, and says so
afterwards: where it ended, and whether it was whole.
"""

import io
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, Literal, cast

from zlib_ng import zlib_ng as zlib  # twice as fast as the one of Python

MAGIC = b"\x1f\x8b\x08"
_NoGzip = cast(type[Exception], zlib.error)  # its stub takes it for an instance
_BLOCK = 2**16  # bytes read at a time; of text, four records of a crawl
_SEARCH_BLOCK = 2**20  # bytes read at a time when looking for a member
HEAD = 2**13  # bytes of a member that are surely enough to see its first line
_SHOWN = 2**10  # unpacked bytes of it that are looked at


class Packed:
    """A stream of packed bytes, read in turn; what was read too far can be given back."""

    def __init__(self, stream: BinaryIO, position: int) -> None:
        self.stream = stream
        self.move(position)

    def move(self, position: int) -> None:
        """Go on at `position`."""
        self.stream.seek(position)
        self._rest = b""
        self._position = position

    @property
    def position(self) -> int:
        """Of the next byte."""
        return self._position - len(self._rest)

    def read(self) -> bytes:
        """The next bytes, some; none at the end."""
        if self._rest:
            block, self._rest = self._rest, b""
            return block
        block = self.stream.read(_BLOCK)
        self._position += len(block)
        return block

    def give_back(self, block: bytes) -> None:
        """Let `block`, which was read last, be read again."""
        self._rest = block

    def peek(self, count: int) -> bytes:
        """The next `count` bytes, or those that there are; they are read again."""
        while len(self._rest) < count and (block := self.stream.read(_BLOCK)):
            self._rest += block
            self._position += len(block)
        return self._rest[:count]


class Member(io.RawIOBase):
    """What the next member of `packed` holds; read to its end, it has moved `packed` behind it."""

    damage = "damaged_gzip"  # the reason to count it by if it is broken

    def __init__(self, packed: Packed) -> None:
        self.start = packed.position
        # "cut": the file ends first; "broken": the bytes are no gzip, or not what was packed.
        self.state: Literal["open", "whole", "cut", "broken"] = "open"
        self._packed = packed
        self._decoder = zlib.decompressobj(31)
        packed.peek(HEAD)
        first = packed.read()
        self._ready, self._given = self._unpack(first), 0
        self.head = self._ready[:_SHOWN] or _unpack_member_head(first)  # what it begins with

    def open_stream(self) -> BinaryIO:
        """A buffered stream of it, from its first byte on."""
        if self.state == "whole":  # all of it is here: the usual case
            return io.BytesIO(self._ready)
        return cast(BinaryIO, io.BufferedReader(self, _BLOCK))

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill `buffer`, or some of it; how much, which is 0 at the end alone."""
        while self._given == len(self._ready) and self.state == "open":
            self._ready, self._given = self._unpack(self._packed.read()), 0
        part = self._ready[self._given : self._given + len(buffer)]
        buffer[: len(part)] = part
        self._given += len(part)
        return len(part)

    def drain(self) -> None:
        """Read to the end, so that `state` is final."""
        while self.state == "open":
            self._unpack(self._packed.read())
        self._ready, self._given = b"", 0

    def _unpack(self, block: bytes) -> bytes:
        """What `block` gives; it swells to 64 MiB at most."""
        try:
            unpacked = self._decoder.decompress(block)
        except _NoGzip:
            self.state = "broken"
            return b""
        if self._decoder.eof:
            self.state = "whole"
            self._packed.give_back(self._decoder.unused_data)
        elif not block:
            self.state = "cut"
        return unpacked


def find_member(stream: BinaryIO, position: int, wanted: Callable[[bytes], bool]) -> int | None:
    """Where the first member at or after `position` begins of whose first bytes `wanted` is true,
    or None."""
    for found in _iterate_places(stream, position, MAGIC):
        if wanted(_read_head(stream, found)):
            return found
    return None


def _read_head(stream: BinaryIO, position: int) -> bytes:
    stream.seek(position)
    return _unpack_member_head(stream.read(HEAD))


def _unpack_member_head(member: bytes) -> bytes:
    """The first bytes of what a member holds, from its own; none if it is no member."""
    try:
        return zlib.decompressobj(31).decompress(member[:HEAD], _SHOWN)
    except _NoGzip:
        return b""


def _iterate_places(stream: BinaryIO, position: int, sign: bytes) -> Iterator[int]:
    """Where `sign` stands at or after `position`. The stream may be moved between two of them."""
    kept = b""
    while True:
        stream.seek(position + len(kept))
        more = stream.read(_SEARCH_BLOCK)
        if not more:
            return
        block = kept + more
        at = block.find(sign)
        while at >= 0:
            yield position + at
            at = block.find(sign, at + 1)
        kept = block[-(len(sign) - 1) :]  # a sign may lie across two blocks
        position += len(block) - len(kept)
