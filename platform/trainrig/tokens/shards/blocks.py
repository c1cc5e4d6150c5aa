"""Blocks of S3 objects, kept on this machine: what random reads of a bucket go through.

An object is read in blocks of BLOCK bytes by ranged GETs, and each block is kept as a file. The
cache is set-associative: a block's name says which of its sets it belongs to, a set is a folder of
at most WAYS blocks, and the one that was used longest ago makes room. So the bound needs no count
that processes would have to share, and no walk over all that is kept.

All processes of a machine may share one folder. A block appears whole (it is renamed into place)
and is known by location, size and ETag of its object, so a changed object has other blocks. One
that another process has just evicted, or that is torn, is fetched again; so is one whose bytes a
reader finds to be damaged (flat.py).
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

# Bytes. S3 charges and waits for each GET (some 20 ms before the first byte), and a window of 4,096
# ids is 16 KiB: smaller blocks would cost more GETs, larger ones bring more that nobody asked for.
BLOCK = 2**18
WAYS = 16  # blocks of a set; with fewer, blocks that share a set drive each other out too early

log = logging.getLogger(__name__)


class BlockCache(Settings):
    """Where blocks of S3 objects are kept on this machine, and how many bytes of them.

    A folder holds one cache for each size that is asked of it.
    """

    # Folder of the cache; None: `trainrig-blocks-USER` in the system's temporary folder.
    folder: Annotated[str | None, CACHE] = None
    # Largest size of the cache, in bytes.
    bytes: Annotated[int, NOT_IDENTITY] = Field(default=8 * 2**30, ge=WAYS * BLOCK)

    @property
    def sets(self) -> int:
        """How many sets the cache has."""
        return self.bytes // (WAYS * BLOCK)

    def read(self, path: str, content: str, begin: int, end: int) -> builtins.bytes:
        """The bytes `begin` up to `end` of the object at `path`, whose content key is `content`.

        Raises DataError if the object is gone or shorter than it was.
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

    def forget(self, path: str, content: str, begin: int, end: int) -> None:
        """Have the blocks of the bytes `begin` up to `end` fetched when they are next read."""
        for number in range(begin // BLOCK, -(-end // BLOCK)):
            self._place(path, content, number).unlink(missing_ok=True)

    def _read_piece(
        self, path: str, content: str, number: int, begin: int, end: int
    ) -> builtins.bytes:
        """Bytes `begin` up to `end` of one block, from here or fetched."""
        kept = self._place(path, content, number)
        size = min(BLOCK, int(content.partition("-")[0]) - number * BLOCK)
        with contextlib.suppress(OSError), kept.open("rb", buffering=0) as file:
            if os.fstat(file.fileno()).st_size == size:
                data = os.pread(file.fileno(), end - begin, begin)
                os.utime(file.fileno())  # used now
                return data
        block = _fetch_block(path, number, size)
        self._keep(kept, block)
        return block[begin:end]

    def _place(self, path: str, content: str, number: int) -> Path:
        name = hashlib.blake2b(f"{path}\n{content}\n{number}".encode(), digest_size=16).hexdigest()
        temporary = Path(tempfile.gettempdir(), f"trainrig-blocks-{os.getuid()}")
        home = Path(self.folder) if self.folder else temporary
        return home / f"{self.sets}-sets" / f"{int(name, 16) % self.sets:06x}" / name

    def _keep(self, place: Path, block: builtins.bytes) -> None:
        """Put a block into its set, the oldest out. Without room on the disk, reading goes on."""
        temporary = place.with_name(f".{place.name}.{secrets.token_hex(4)}")
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            _make_room(place.parent)
            temporary.write_bytes(block)
            temporary.replace(place)
        except FileNotFoundError:  # another process made room of the set, this block among it
            return
        except OSError as error:
            _warn_once(str(place.parent.parent), str(error.strerror))
            with contextlib.suppress(OSError):
                temporary.unlink()


@functools.cache
def _warn_once(folder: str, problem: str) -> None:
    log.warning(
        "%s: blocks of S3 cannot be kept (%s); reading on, with a GET each time", folder, problem
    )


def _fetch_block(path: str, number: int, size: int) -> bytes:
    first = number * BLOCK
    try:
        block = storage.read_range(path, first, first + size)
    except FileNotFoundError:
        raise DataError(f"{path}: gone since it was opened") from None
    if len(block) != size:
        raise DataError(
            f"{path}: {len(block)} bytes from byte {first}, not the {size} there were when it was "
            f"opened; the object has changed"
        )
    return block


def _make_room(folder: Path) -> None:
    """Leave at most WAYS - 1 blocks in the set, unfinished ones of killed processes counted."""
    ages: list[tuple[int, str]] = []
    for entry in os.scandir(folder):
        with contextlib.suppress(FileNotFoundError):  # another process was quicker
            ages.append((entry.stat().st_mtime_ns, entry.path))
    for _, path in sorted(ages)[: max(0, len(ages) - WAYS + 1)]:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)  # noqa: PTH108 - many in a row
