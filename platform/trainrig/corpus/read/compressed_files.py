"""Compressed files: streams of gzip, zstd, bzip2 or xz, or gzip members that follow one another.

Archives have one gzip member (RFC 1952) per record. A member is a stream of its decompressed bytes.
Reading never raises for damage; afterwards the stream reports where it ended and whether it was
whole. Uncompressed files are read by the same interface.
"""

import bz2
import io
import lzma
from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, Literal, cast

from fastwarc.stream_io import ZstdReader
from zlib_ng import zlib_ng as zlib  # twice as fast as Python's zlib

GZIP_MAGIC = b"\x1f\x8b\x08"
_NoGzip = cast(type[Exception], zlib.error)  # the type stubs declare an instance
_MEMBER_BLOCK = 2**16  # bytes read at a time; about four text records of a crawl
_SEARCH_BLOCK = 2**20  # bytes read at a time when searching for a member
MEMBER_HEAD = 2**13  # bytes of a member that always include its first line
_MEMBER_HEAD_SHOWN = 2**10  # decompressed bytes of it that are examined


State = Literal["open", "whole", "cut", "broken"]


class _Source(io.RawIOBase):
    """Base of decompressed content; after reading, `state` says whether it was whole."""

    damage = ""  # the reason to report if `state` is "broken"

    def readable(self) -> bool:
        """Return True."""
        return True


class Packed:
    """A stream of compressed bytes, read sequentially, to which unused bytes can be returned."""

    def __init__(self, stream: BinaryIO, position: int) -> None:
        self.stream = stream
        self.move(position)

    def move(self, position: int) -> None:
        """Continue at `position`."""
        self.stream.seek(position)
        self._rest = b""
        self._position = position

    @property
    def position(self) -> int:
        """Position of the next byte."""
        return self._position - len(self._rest)

    def read(self) -> bytes:
        """Return some of the next bytes, or b"" at the end."""
        if self._rest:
            block = self._rest
            self._rest = b""
            return block
        block = self.stream.read(_MEMBER_BLOCK)
        self._position += len(block)
        return block

    def give_back(self, block: bytes) -> None:
        """Return the unused end `block` of the last read, so that it is read again."""
        self._rest = block

    def peek(self, count: int) -> bytes:
        """Return the next `count` bytes, or fewer at the end, without consuming them."""
        while len(self._rest) < count and (block := self.stream.read(_MEMBER_BLOCK)):
            self._rest += block
            self._position += len(block)
        return self._rest[:count]


class Member(_Source):
    """The decompressed content of the next member of `packed`.

    Reading it to its end moves `packed` to after the member.
    """

    damage = "damaged_gzip"

    def __init__(self, packed: Packed) -> None:
        self.start = packed.position
        # "cut": the file ends inside the member; "broken": the bytes are not valid gzip.
        self.state: State = "open"
        self._packed = packed
        self._decoder = zlib.decompressobj(31)
        packed.peek(MEMBER_HEAD)
        first = packed.read()
        self._ready = self._unpack(first)
        self._given = 0
        # start of the decompressed content
        self.head = self._ready[:_MEMBER_HEAD_SHOWN] or _unpack_member_head(first)

    def open_stream(self) -> BinaryIO:
        """Return a buffered stream of the member, from its first byte."""
        if self.state == "whole":  # the usual case: all of the member is decompressed already
            return io.BytesIO(self._ready)
        return cast(BinaryIO, io.BufferedReader(self, _MEMBER_BLOCK))

    def readinto(self, buffer: Any) -> int:
        """Fill all or part of `buffer`; return the number of bytes, which is 0 only at the end."""
        while self._given == len(self._ready) and self.state == "open":
            self._ready = self._unpack(self._packed.read())
            self._given = 0
        part = self._ready[self._given : self._given + len(buffer)]
        buffer[: len(part)] = part
        self._given += len(part)
        return len(part)

    def drain(self) -> None:
        """Read to the end, so that `state` is final."""
        while self.state == "open":
            self._unpack(self._packed.read())
        self._ready = b""
        self._given = 0

    def _unpack(self, block: bytes) -> bytes:
        """Decompress `block`, to at most 64 MiB."""
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
    """Find the first member at or after `position` whose first bytes fulfil `wanted`.

    Returns its position, or None.
    """
    for found in _iterate_magic_places(stream, position, GZIP_MAGIC):
        if wanted(_read_head(stream, found)):
            return found
    return None


def _read_head(stream: BinaryIO, position: int) -> bytes:
    stream.seek(position)
    return _unpack_member_head(stream.read(MEMBER_HEAD))


def _unpack_member_head(member: bytes) -> bytes:
    """Decompress the start of a member; return b"" if it is not a member."""
    try:
        return zlib.decompressobj(31).decompress(member[:MEMBER_HEAD], _MEMBER_HEAD_SHOWN)
    except _NoGzip:
        return b""


def _iterate_magic_places(stream: BinaryIO, position: int, sign: bytes) -> Iterator[int]:
    """Yield positions of `sign` at or after `position`; the stream may be moved in between."""
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
        kept = block[-(len(sign) - 1) :]  # a sign may span two blocks
        position += len(block) - len(kept)


ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_FRAME_BLOCK = 2**16  # bytes
_BUFFER = 2**18  # bytes


class WholeFile(_Source):
    """The decompressed content of a whole file; `state` reports damage, nothing raises."""

    start = 0

    def __init__(self, stream: BinaryIO) -> None:
        self.state: State = "open"
        self._stream = stream

    def open_stream(self) -> BinaryIO:
        """Return a buffered stream of the content."""
        return cast(BinaryIO, io.BufferedReader(self, _BUFFER))

    def drain(self) -> None:
        """Read to the end, so that `state` is final."""
        while self.read(_FRAME_BLOCK):
            pass


# Bytes; libzstd refuses frames with a larger window unless asked, and fastwarc (2.0) never asks.
_LARGEST_WINDOW = 2**27
_FRAME_HEAD = 6  # bytes: the magic, a descriptor, and the window if the descriptor announces one
_SINGLE_SEGMENT = 0x20  # bit of the descriptor: the window is the whole content


def _read_window(head: bytes) -> int:
    """Return the bytes of the window of a zstd frame (RFC 8878, 3.1.1.1.2), or 0 if not stated."""
    if len(head) < _FRAME_HEAD or head[4] & _SINGLE_SEGMENT:
        return 0
    base = 1 << (10 + (head[5] >> 3))
    return base + base // 8 * (head[5] & 7)


class Frames(WholeFile):
    """The decompressed content of a file's zstd frames."""

    damage = "damaged_zstd"

    def __init__(self, stream: BinaryIO) -> None:
        super().__init__(stream)
        start = stream.tell()
        if _read_window(stream.read(_FRAME_HEAD)) > _LARGEST_WINDOW:
            self.damage = "zstd_window_too_large"
        stream.seek(start)
        self._reader = ZstdReader(stream)

    def readinto(self, buffer: Any) -> int:
        """Fill all or part of `buffer`; return the number of bytes, which is 0 only at the end."""
        if self.state != "open":
            return 0
        try:
            block = self._reader.read(min(len(buffer), _FRAME_BLOCK))
        except OSError as error:
            if error.errno is not None:  # an error of the disk, not of the decoder
                raise
            # The decoder (2.0.1) distinguishes the two only in the text of its message.
            self.state = "cut" if "incomplete" in str(error) else "broken"
            return 0
        if not block:
            self.state = "whole"
        buffer[: len(block)] = block
        return len(block)


class _Streams(WholeFile):
    """The decompressed content of streams that follow one another, with padding between them."""

    def __init__(self, stream: BinaryIO) -> None:
        super().__init__(stream)
        self._decoder = self._make_decoder()
        self._rest = b""  # bytes that were read and not decompressed yet

    @abstractmethod
    def _make_decoder(self) -> Any:
        """Return a new decoder for the next stream."""

    def readinto(self, buffer: Any) -> int:
        """Fill all or part of `buffer`; return the number of bytes, which is 0 only at the end."""
        while self.state == "open":
            if self._decoder.eof:
                self._rest = (self._decoder.unused_data + self._rest).lstrip(b"\0")
                self._rest = self._rest or self._stream.read(_FRAME_BLOCK).lstrip(b"\0")
                if not self._rest:
                    self.state = "whole"
                    break
                self._decoder = self._make_decoder()
            elif self._decoder.needs_input and not self._rest:
                self._rest = self._stream.read(_FRAME_BLOCK)
                if not self._rest:
                    self.state = "cut"
                    break
            try:
                block = self._decoder.decompress(self._rest, min(len(buffer), _FRAME_BLOCK))
            except (OSError, EOFError, lzma.LZMAError):
                self.state = "broken"
                break
            self._rest = b""
            if block:
                buffer[: len(block)] = block
                return len(block)
        return 0


class Bzip2(_Streams):
    """The decompressed content of a bzip2 file."""

    damage = "damaged_bzip2"

    def _make_decoder(self) -> bz2.BZ2Decompressor:
        return bz2.BZ2Decompressor()


class XZ(_Streams):
    """The decompressed content of an xz file."""

    damage = "damaged_xz"

    def _make_decoder(self) -> lzma.LZMADecompressor:
        return lzma.LZMADecompressor(lzma.FORMAT_XZ)


class Members(_Source):
    """The decompressed content of all gzip members of a file, concatenated."""

    damage = "damaged_gzip"

    def __init__(self, stream: BinaryIO) -> None:
        self._packed = Packed(stream, 0)
        self._member = Member(self._packed)

    @property
    def state(self) -> State:
        """State of the member being read; at the end, of the last one."""
        return self._member.state

    def readinto(self, buffer: Any) -> int:
        """Fill all or part of `buffer`; return the number of bytes, which is 0 only at the end."""
        while (count := self._member.readinto(buffer)) == 0 and self.state == "whole":
            if not self._packed.peek(len(GZIP_MAGIC)).strip(b"\0"):  # the end, or padding
                return 0
            self._member = Member(self._packed)
        return count


class Plain(_Source):
    """A file that is not compressed, and so never damaged."""

    state: State = "whole"

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def readinto(self, buffer: Any) -> int:
        """Fill all or part of `buffer`; return the number of bytes, which is 0 only at the end."""
        block = self._stream.read(len(buffer))
        buffer[: len(block)] = block
        return len(block)


_BY_MAGIC: dict[bytes, type[Frames | Bzip2 | XZ | Members]] = {
    GZIP_MAGIC: Members,
    ZSTD_MAGIC: Frames,
    b"BZh": Bzip2,
    b"\xfd7zXZ\0": XZ,
}
LONGEST_MAGIC = max(map(len, _BY_MAGIC))  # bytes


def find_unpacking(magic: bytes) -> type[Frames | Bzip2 | XZ | Members | Plain]:
    """Return how to decompress a file that begins with `magic`."""
    return next((kind for start, kind in _BY_MAGIC.items() if magic.startswith(start)), Plain)


class Unpacked(io.BufferedReader):
    """The decompressed content of a file. Damage ends it; `reason` then names the damage."""

    def __init__(self, stream: BinaryIO) -> None:
        magic = stream.read(LONGEST_MAGIC)
        stream.seek(0)
        self._source = cast(Any, find_unpacking(magic)(stream))
        super().__init__(self._source, _BUFFER)

    @property
    def reason(self) -> str | None:
        """Why the content ended early: "truncated" or the kind of damage; None if it is whole."""
        if self._source.state == "broken":
            return str(self._source.damage)
        return "truncated" if self._source.state == "cut" else None
