"""Files with one SHA-256 per chunk, so that a reader can verify just the chunks it needs."""

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

CHUNK = 16 * 2**20  # maximum bytes per checksum: what a reader holds in memory to verify a chunk
# Chunks read concurrently. A stream from S3 gives some 90 MB/s; disks can handle as many.
READERS = 4

Bytes = NDArray[np.uint8]
Chunk = tuple[int, int, str]  # first byte, byte after the last, SHA-256
Item = TypeVar("Item")


class DamagedCheckpoint(ClusterError):
    """Raised if bytes of a checkpoint differ from those written; another one may be valid."""


class FileChunks(BaseModel):
    """Chunks of one file: where each ends, and its SHA-256."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    ends: tuple[int, ...]  # byte offsets from the beginning of the file, ascending
    sha256: tuple[str, ...]

    @property
    def bytes(self) -> int:
        """Size of the file in bytes."""
        return self.ends[-1] if self.ends else 0

    def iterate_chunks(self) -> Iterator[Chunk]:
        """Yield (begin, end, SHA-256) of each chunk, in order."""
        yield from zip((0, *self.ends), self.ends, self.sha256, strict=False)


def write_file(path: str, data: memoryview, first: int = 0) -> FileChunks:
    """Write `data` to `path` atomically, and return its chunks.

    The checksums are computed from `data` in memory, not from the written file. With `first`, the
    first chunk has that many bytes: a header can then be read alone.
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
    """Read and verify the bytes [begin, end) of `path`, whose SHA-256 is `sha256`.

    Raises DamagedCheckpoint if the file is missing, too short or different on two readings, and
    ClusterError for other read errors.
    """
    for _ in range(2):  # a first mismatch may be an error of memory or network, so it is read twice
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
        raise DamagedCheckpoint(f"{path}: the file ends early, at byte {begin + count}")
    raise DamagedCheckpoint(f"{path}: bytes differ from those written, from byte {begin} on")


def read_file(path: str, wanted: FileChunks) -> bytes:
    """Read and verify the whole of the small file `path`. Raise DamagedCheckpoint on a mismatch."""
    return b"".join(read_chunk(path, *chunk).tobytes() for chunk in wanted.iterate_chunks())


def find_damaged_chunk(wanted: Iterable[tuple[str, Chunk]]) -> str | None:
    """Describe the problem of the first damaged chunk; return None if all are valid.

    `wanted` are pairs of a file's path and a chunk. READERS chunks are read concurrently, across
    files.
    """
    try:
        with ThreadPoolExecutor(READERS) as pool:
            for begun in batched(wanted, 8 * READERS):
                for _ in pool.map(lambda item: len(read_chunk(item[0], *item[1])), begun):
                    pass
    except DamagedCheckpoint as damage:
        return str(damage)
    return None


def batched(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Yield `items` in lists of `size`; the last one may be shorter."""
    rest = iter(items)
    while some := list(itertools.islice(rest, size)):
        yield some
