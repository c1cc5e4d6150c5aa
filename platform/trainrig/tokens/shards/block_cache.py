"""Cache on local disk for blocks of S3 objects, used for random reads from a bucket.

An object is read in blocks of BLOCK bytes by ranged GETs, and each block is kept as one file. The
cache is set-associative: the hash of a block's name selects one of its sets, and a set is a folder
of at most WAYS blocks. A new block evicts the least recently used one of its set. This bounds the
size of the cache without a count that processes would have to share, and without listing all files.

All processes of a machine may share one folder. A block is renamed into place, so it is never seen
half written. Its name is a hash of the location, size and ETag of its object, so a changed object
has other blocks. A block that another process has just evicted, or whose file is too short, is
fetched again; so is one in which a reader finds damaged bytes (flat_arrays.py).
"""

import builtins
import contextlib
import functools
import hashlib
import logging
import os
import secrets
import tempfile
from pathlib import Path
from typing import Annotated

from trainrig import storage
from trainrig.config import CACHE, NOT_IDENTITY, Field, Settings
from trainrig.errors import DataError

# Bytes in a block. S3 charges for each GET, and its first byte takes about 20 ms. A window of 4,096
# ids is 16 KiB. Smaller blocks would need more GETs; larger ones would fetch more unused bytes.
BLOCK = 2**18
# Blocks in a set. With fewer, blocks that hash to the same set evict each other too early.
WAYS = 16

log = logging.getLogger(__name__)


class BlockCache(Settings):
    """Cache for blocks of S3 objects: its folder on this machine and its size limit.

    A folder holds one separate cache for each size limit that is used with it.
    """

    # Folder of the cache; None: `trainrig-blocks-USER` in the system's temporary folder.
    folder: Annotated[str | None, CACHE] = None
    # Size limit of the cache, in bytes.
    bytes: Annotated[int, NOT_IDENTITY] = Field(default=8 * 2**30, ge=WAYS * BLOCK)

    @property
    def sets(self) -> int:
        """Number of sets in the cache."""
        return self.bytes // (WAYS * BLOCK)

    def read(self, path: str, content: str, begin: int, end: int) -> builtins.bytes:
        """Return the bytes `begin` to `end` (exclusive) of the S3 object at `path`.

        `content` is the object's content key: its size and ETag. Raises DataError if the object no
        longer exists or is shorter than that size.
        """
        pieces = []
        for number in range(begin // BLOCK, -(-end // BLOCK)):
            first = number * BLOCK
            pieces.append(
                self._read_piece(
                    path, content, number, max(begin - first, 0), min(end - first, BLOCK)
                )
            )
        return b"".join(pieces)

    def invalidate(self, path: str, content: str, begin: int, end: int) -> None:
        """Delete the blocks that hold the bytes `begin` to `end`, so that a read fetches them."""
        for number in range(begin // BLOCK, -(-end // BLOCK)):
            self._find_path(path, content, number).unlink(missing_ok=True)

    def _read_piece(
        self, path: str, content: str, number: int, begin: int, end: int
    ) -> builtins.bytes:
        """Return the bytes `begin` to `end` of one block, from the cache or fetched from S3."""
        kept = self._find_path(path, content, number)
        size = min(BLOCK, int(content.partition("-")[0]) - number * BLOCK)
        with contextlib.suppress(OSError), kept.open("rb", buffering=0) as file:
            if os.fstat(file.fileno()).st_size == size:
                data = os.pread(file.fileno(), end - begin, begin)
                os.utime(file.fileno())  # mark as most recently used
                return data
        block = _fetch_block(path, number, size)
        self._write_block(kept, block)
        return block[begin:end]

    def _find_path(self, path: str, content: str, number: int) -> Path:
        name = hashlib.blake2b(f"{path}\n{content}\n{number}".encode(), digest_size=16).hexdigest()
        temporary = Path(tempfile.gettempdir(), f"trainrig-blocks-{os.getuid()}")
        home = Path(self.folder) if self.folder else temporary
        return home / f"{self.sets}-sets" / f"{int(name, 16) % self.sets:06x}" / name

    def _write_block(self, place: Path, block: builtins.bytes) -> None:
        """Write a block into its set and evict the oldest; on a full disk, warn and do nothing."""
        temporary = place.with_name(f".{place.name}.{secrets.token_hex(4)}")
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            _evict_oldest(place.parent)
            temporary.write_bytes(block)
            temporary.replace(place)
        except FileNotFoundError:  # another process removed this block or its set
            return
        except OSError as error:
            _warn_once(str(place.parent.parent), str(error.strerror))
            with contextlib.suppress(OSError):
                temporary.unlink()


@functools.cache
def _warn_once(folder: str, problem: str) -> None:
    log.warning(
        "%s: blocks of S3 cannot be cached (%s); each read fetches them again", folder, problem
    )


def _fetch_block(path: str, number: int, size: int) -> bytes:
    first = number * BLOCK
    try:
        block = storage.read_range(path, first, first + size)
    except FileNotFoundError:
        raise DataError(f"{path}: deleted since it was opened; restore it") from None
    if len(block) != size:
        raise DataError(
            f"{path}: {len(block)} bytes from byte {first}, but {size} when it was opened; the "
            f"object has changed since"
        )
    return block


def _evict_oldest(folder: Path) -> None:
    """Evict blocks until the set holds at most WAYS - 1, counting temporary files as blocks."""
    ages: list[tuple[int, str]] = []
    for entry in os.scandir(folder):
        with contextlib.suppress(FileNotFoundError):  # another process evicted the block
            ages.append((entry.stat().st_mtime_ns, entry.path))
    for _, path in sorted(ages)[: max(0, len(ages) - WAYS + 1)]:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)  # noqa: PTH108 - many in a row
