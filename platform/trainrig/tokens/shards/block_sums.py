"""Sums of the blocks of an array's file: what a reader is given is what was written.

    NAME.sums   [blocks] uint32: the CRC-32 of each SUMMED bytes of NAME; the last block may be less

A block is checked each time that it is read, not only the first time: a bit that flips in the page
cache, or on the disk under it, is found whenever it comes. CRC-32 finds each flip of up to three
bits and each burst of up to 32, and one damage of another kind in 4 billion escapes it: it is there
for accidents. Who has to fear changes made on purpose compares SHA-256 (`tokens inspect --verify`).
"""

import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Bytes. Of larger ones a reader would check more than it wants; the sums of these are 1/4,096.
SUMMED = 2**14
SUMS = ".sums"  # after the name of the array's file
SUM_DTYPE = np.dtype("<u4")

Sums = NDArray[np.unsignedinteger[Any]]


def compute_block_sums(pieces: Iterable[bytes | memoryview]) -> bytes:
    """The sums of all `pieces`, one after the other, as they lie in a file."""
    return np.fromiter(map(zlib.crc32, _cut_blocks(pieces)), SUM_DTYPE).tobytes()


def compute_file_block_sums(path: str | Path) -> bytes:
    """The sums of the local file at `path`."""
    with Path(path).open("rb") as file:
        return compute_block_sums(iter(lambda: file.read(64 * SUMMED), b""))


def count_sums_bytes(size: int) -> int:
    """Bytes that the sums of a file of `size` bytes take."""
    return -(-size // SUMMED) * SUM_DTYPE.itemsize


def find_damaged(data: bytes, sums: Sums) -> int | None:
    """Which block of `data`, which begins with one, has another sum than in `sums`."""
    view = memoryview(data)
    for number, expected in enumerate(sums.tolist()):
        if zlib.crc32(view[number * SUMMED : (number + 1) * SUMMED]) != expected:
            return number
    return None


def _cut_blocks(pieces: Iterable[bytes | memoryview]) -> Iterator[bytes | memoryview]:
    """`pieces`, which may be of any lengths, cut into blocks."""
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
