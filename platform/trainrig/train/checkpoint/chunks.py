"""Files with a SHA-256 for each piece of them, so that who reads a piece can check that piece."""

import errno
import hashlib
import itertools
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from trainrig import storage
from trainrig.errors import ClusterError

CHUNK = 16 * 2**20  # bytes under one sum, at most: what a reader holds to check what it reads
# Chunks on their way at a time. A stream from S3 gives some 90 MB/s; a disk does not mind.
READERS = 4

Bytes = NDArray[np.uint8]
Chunk = tuple[int, int, str]  # where it begins and ends in its file, and its sum
Item = TypeVar("Item")


class DamagedCheckpoint(ClusterError):
    """The bytes of a checkpoint are not those that were written. Another one may be whole."""


class FileChunks(BaseModel):
    """One file: where its chunks end, and the SHA-256 of each."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    ends: tuple[int, ...]  # bytes from the beginning of the file, ascending
    sha256: tuple[str, ...]

    @property
    def bytes(self) -> int:
        """Size of the file."""
        return self.ends[-1] if self.ends else 0

    def iterate_chunks(self) -> Iterator[Chunk]:
        """(begin, end, sum) of each chunk."""
        yield from zip((0, *self.ends), self.ends, self.sha256, strict=False)


def write_file(path: str, data: memoryview, first: int = 0) -> FileChunks:
    """Put `data` at `path`, atomically; its sums, taken from memory, not from what was written.

    The first chunk is of `first` bytes, if that is given: a header can then be read by itself.
    """
    ends = [*([first] if first else []), *range(first + CHUNK, len(data), CHUNK)]
    ends += [len(data)] if len(data) > (ends[-1] if ends else 0) else []
    sums = [
        hashlib.sha256(data[begin:end]).hexdigest()
        for begin, end in zip([0, *ends], ends, strict=False)
    ]
    storage.write(path, data)
    return FileChunks(ends=tuple(ends), sha256=tuple(sums))


def read_chunk(path: str, begin: int, end: int, sha256: str) -> Bytes:
    """The bytes `begin` up to `end` of `path`, whose sum is `sha256`. Raises DamagedCheckpoint."""
    for _ in range(2):  # memory and networks err too: nothing is called damaged on one reading
        data = np.empty(end - begin, np.uint8)
        try:
            count = storage.read_into(path, begin, data.data)
        except FileNotFoundError:
            raise DamagedCheckpoint(f"{path}: gone") from None
        except OSError as error:
            if error.errno == errno.EIO:
                raise DamagedCheckpoint(f"{path}: {error.strerror}") from None
            raise ClusterError(f"{path}: cannot be read: {error.strerror}") from error
        if count == len(data) and hashlib.sha256(data.data).hexdigest() == sha256:
            return data
    if count < len(data):
        raise DamagedCheckpoint(f"{path}: ends at byte {begin + count}, in mid-chunk")
    raise DamagedCheckpoint(f"{path}: other bytes than were written, from byte {begin} on")


def read_file(path: str, wanted: FileChunks) -> bytes:
    """All bytes of `path`, a small file, checked. Raises DamagedCheckpoint."""
    return b"".join(read_chunk(path, *chunk).tobytes() for chunk in wanted.iterate_chunks())


def find_damaged_chunk(wanted: Iterable[tuple[str, Chunk]]) -> str | None:
    """What is wrong with the first of the chunks of files (by path) that is, in words; None if
    nothing is. So many are read at a time as one reader can, whichever files they are of."""
    try:
        with ThreadPoolExecutor(READERS) as pool:
            for begun in batched(wanted, 8 * READERS):
                for _ in pool.map(lambda each: len(read_chunk(each[0], *each[1])), begun):
                    pass
    except DamagedCheckpoint as damage:
        return str(damage)
    return None


def batched(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """`items` in lists of `size`, the last of which may be shorter."""
    rest = iter(items)
    while some := list(itertools.islice(rest, size)):
        yield some
