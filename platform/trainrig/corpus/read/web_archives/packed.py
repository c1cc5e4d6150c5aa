"""Reads files that are one compressed stream, gzip or zstd, or uncompressed."""

import io
from typing import Any, BinaryIO, Literal, cast

from fastwarc.stream_io import ZstdReader

from trainrig.corpus.read.web_archives.members import MAGIC, Member, Packed

ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_BLOCK = 2**16  # bytes
_BUFFER = 2**18  # bytes

State = Literal["open", "whole", "cut", "broken"]


class Frames(io.RawIOBase):
    """The decompressed content of a file's zstd frames; `state` reports damage, nothing raises."""

    damage = "damaged_zstd"
    start = 0

    def __init__(self, stream: BinaryIO) -> None:
        self.state: State = "open"
        self._reader = ZstdReader(stream)

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill all or part of `buffer`; return the number of bytes, which is 0 only at the end."""
        if self.state != "open":
            return 0
        try:
            block = self._reader.read(min(len(buffer), _BLOCK))
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

    def open_stream(self) -> BinaryIO:
        """Return a buffered stream of the content."""
        return cast(BinaryIO, io.BufferedReader(self, _BUFFER))

    def drain(self) -> None:
        """Read to the end, so that `state` is final."""
        while self.read(_BLOCK):
            pass


class Members(io.RawIOBase):
    """The decompressed content of all gzip members of a file, concatenated."""

    damage = "damaged_gzip"

    def __init__(self, stream: BinaryIO) -> None:
        self._packed = Packed(stream, 0)
        self._member = Member(self._packed)

    @property
    def state(self) -> State:
        """State of the member being read; at the end, of the last one."""
        return self._member.state

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill all or part of `buffer`; return the number of bytes, which is 0 only at the end."""
        while (count := self._member.readinto(buffer)) == 0 and self.state == "whole":
            if not self._packed.peek(len(MAGIC)).strip(b"\0"):  # the end, or padding
                return 0
            self._member = Member(self._packed)
        return count


class Plain(io.RawIOBase):
    """A file that is not compressed, and so never damaged."""

    damage = ""
    state: State = "whole"

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill all or part of `buffer`; return the number of bytes, which is 0 only at the end."""
        block = self._stream.read(len(buffer))
        buffer[: len(block)] = block
        return len(block)


class Unpacked(io.BufferedReader):
    """The decompressed content of a file. Damage ends it; `reason` then names the damage."""

    def __init__(self, stream: BinaryIO) -> None:
        magic = stream.read(len(ZSTD_MAGIC))
        stream.seek(0)
        kind = Members if magic.startswith(MAGIC) else Frames if magic == ZSTD_MAGIC else Plain
        self._source = cast(Any, kind(stream))
        super().__init__(self._source, _BUFFER)

    @property
    def reason(self) -> str | None:
        """Why the content ended early: "truncated" or the kind of damage; None if it is whole."""
        if self._source.state == "broken":
            return str(self._source.damage)
        return "truncated" if self._source.state == "cut" else None
