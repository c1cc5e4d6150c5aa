"""Files of one packed stream, gzip or zstd, or of plain bytes: read as what they hold."""

import io
from typing import Any, BinaryIO, Literal, cast

from fastwarc.stream_io import ZstdReader

from trainrig.corpus.read.web_archives.members import MAGIC, Member, Packed

ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_BLOCK = 2**16  # bytes
_BUFFER = 2**18  # bytes

State = Literal["open", "whole", "cut", "broken"]


class Frames(io.RawIOBase):
    """What the zstd frames of a file hold. Never raises for damage: `state` tells of it."""

    damage = "damaged_zstd"
    start = 0

    def __init__(self, stream: BinaryIO) -> None:
        self.state: State = "open"
        self._reader = ZstdReader(stream)

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill `buffer`, or some of it; how much, which is 0 at the end alone."""
        if self.state != "open":
            return 0
        try:
            block = self._reader.read(min(len(buffer), _BLOCK))
        except OSError as error:
            if error.errno is not None:  # the disk's, not the reader's
                raise
            # The reader tells the two apart in words alone (2.0.1).
            self.state = "cut" if "incomplete" in str(error) else "broken"
            return 0
        if not block:
            self.state = "whole"
        buffer[: len(block)] = block
        return len(block)

    def open_stream(self) -> BinaryIO:
        """A buffered stream of it."""
        return cast(BinaryIO, io.BufferedReader(self, _BUFFER))

    def drain(self) -> None:
        """Read to the end, so that `state` is final."""
        while self.read(_BLOCK):
            pass


class Members(io.RawIOBase):
    """What all gzip members of a file hold, one behind another."""

    damage = "damaged_gzip"

    def __init__(self, stream: BinaryIO) -> None:
        self._packed = Packed(stream, 0)
        self._member = Member(self._packed)

    @property
    def state(self) -> State:
        """Of the member that is being read: the last one, at the end."""
        return self._member.state

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill `buffer`, or some of it; how much, which is 0 at the end alone."""
        while (count := self._member.readinto(buffer)) == 0 and self.state == "whole":
            if not self._packed.peek(len(MAGIC)).strip(b"\0"):  # the end, or padding
                return 0
            self._member = Member(self._packed)
        return count


class Plain(io.RawIOBase):
    """A file that is not packed. Nothing can be wrong with it."""

    damage = ""
    state: State = "whole"

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill `buffer`, or some of it; how much, which is 0 at the end alone."""
        block = self._stream.read(len(buffer))
        buffer[: len(block)] = block
        return len(block)


class Unpacked(io.BufferedReader):
    """What a file holds. Damage ends it: `reason` then says what to count it by."""

    def __init__(self, stream: BinaryIO) -> None:
        magic = stream.read(len(ZSTD_MAGIC))
        stream.seek(0)
        kind = Members if magic.startswith(MAGIC) else Frames if magic == ZSTD_MAGIC else Plain
        self._source = cast(Any, kind(stream))
        super().__init__(self._source, _BUFFER)

    @property
    def reason(self) -> str | None:
        """Why it ended before it was whole: "truncated" or its damage; None if it did not."""
        if self._source.state == "broken":
            return str(self._source.damage)
        return "truncated" if self._source.state == "cut" else None
