"""Checksums of an array file's blocks, so that a reader detects bytes that changed after writing.

    NAME.sums   [blocks] uint32: the CRC-32 of each block of SUMMED bytes of NAME (the last block
                may be shorter)

Readers check a block on every read, not only on the first. A bit that flips later, in the page
cache or on the disk, is therefore found too. CRC-32 detects every error of up to three flipped bits
and every burst of up to 32 bits; of other errors it misses one in 4 billion. It protects against
accidents only. Against deliberate changes compare SHA-256 sums (`tokens inspect --verify`).
"""

import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Bytes in a block. Larger blocks would make a small read check more bytes than it needs. At this
# size the checksums add 1/4,096 to the data.
SUMMED = 2**14
SUMS = ".sums"  # suffix, after the name of the array's file
SUM_DTYPE = np.dtype("<u4")

Sums = NDArray[np.unsignedinteger[Any]]


def compute_block_sums(pieces: Iterable[bytes | memoryview]) -> bytes:
    """Return the content of the .sums file for a file with the concatenated bytes of `pieces`."""
    return np.fromiter(map(zlib.crc32, _cut_blocks(pieces)), SUM_DTYPE).tobytes()


def compute_file_block_sums(path: str | Path) -> bytes:
    """Return the content of the .sums file for the local file at `path`."""
    with Path(path).open("rb") as file:
        return compute_block_sums(iter(lambda: file.read(64 * SUMMED), b""))


def count_sums_bytes(size: int) -> int:
    """Return the size in bytes of the .sums file of a file of `size` bytes."""
    return -(-size // SUMMED) * SUM_DTYPE.itemsize


def find_damaged(data: bytes, sums: Sums) -> int | None:
    """Return the index of the first block of `data` whose checksum differs from `sums`, or None.

    `data` must begin at a block boundary, and `sums` must hold the checksum of each of its blocks.
    """
    view = memoryview(data)
    for number, expected in enumerate(sums.tolist()):
        if zlib.crc32(view[number * SUMMED : (number + 1) * SUMMED]) != expected:
            return number
    return None


def _cut_blocks(pieces: Iterable[bytes | memoryview]) -> Iterator[bytes | memoryview]:
    """Yield the concatenated bytes of `pieces`, which may have any lengths, in blocks of SUMMED."""
    rest = bytearray()
    for piece in pieces:
        view = memoryview(piece)
        if rest:
            taken = min(SUMMED - len(rest), len(view))
            rest += view[:taken]
            view = view[taken:]
            if len(rest) == SUMMED:
                yield bytes(rest)
                rest.clear()
        whole = len(view) // SUMMED * SUMMED
        for begin in range(0, whole, SUMMED):
            yield view[begin : begin + SUMMED]
        rest += view[whole:]
    if rest:
        yield bytes(rest)
