"""64-bit hashes of characters and words, and a hash table that counts them.

Two different runs of one text share a hash in about one of 10**13 texts of a thousand words. The
hashes are not secure against chosen keys.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.compiled import compile_nogil

# FNV-1a's offset and prime; bits are mixed by the finaliser of splitmix64 (Steele et al. 2014).
SEED = np.uint64(0xCBF29CE484222325)
PRIME = np.uint64(0x100000001B3)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_30 = np.uint64(30)
_27 = np.uint64(27)
_31 = np.uint64(31)


class Seen(NamedTuple):
    """Open-addressing hash table that is empty for each new generation (from 1), uncleared."""

    keys: NDArray[np.uint64]
    stamps: NDArray[np.int64]  # the generation that wrote each slot
    counts: NDArray[np.int32]


def allocate_seen(most: int) -> Seen:
    """Allocate a table for `most` keys, which fill at most half of it."""
    size = int(compute_table_size(max(1, most)))
    return Seen(np.zeros(size, np.uint64), np.zeros(size, np.int64), np.zeros(size, np.int32))


@compile_nogil
def compute_table_size(keys: int) -> int:
    """Return the smallest power of two with at least two slots per key."""
    size = 2
    while size < 2 * keys:
        size *= 2
    return size


@compile_nogil
def mix_bits(value: np.uint64) -> np.uint64:
    """Hash `value` so that every bit of the result depends on all its bits."""
    value = (value ^ (value >> _30)) * _FIRST
    value = (value ^ (value >> _27)) * _SECOND
    return value ^ (value >> _31)


@compile_nogil
def hash_characters(codes: NDArray[np.uint32], start: int, end: int) -> np.uint64:
    """Hash the characters `start` to `end`."""
    found = SEED
    for place in range(start, end):
        found = (found ^ np.uint64(codes[place])) * PRIME
    return mix_bits(found)


@compile_nogil
def count_again(
    keys: NDArray[np.uint64],
    stamps: NDArray[np.int64],
    counts: NDArray[np.int32],
    generation: int,
    size: int,
    key: np.uint64,
) -> np.int64:
    """Increment the count of `key`, 1 if it is new; return its slot among the first `size`."""
    place = np.int64(key & np.uint64(size - 1))
    while stamps[place] == generation and keys[place] != key:
        place = (place + 1) & (size - 1)
    if stamps[place] == generation:
        counts[place] += 1
    else:
        stamps[place] = generation
        keys[place] = key
        counts[place] = 1
    return place
