"""Hashes of words, and tables that map words to numbers, for compiled code.

Shapes: S slots of a table, a power of two.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.compiled import compile_kernel

FNV_START: Final = np.uint64(0xCBF29CE484222325)
FNV_PRIME: Final = np.uint64(0x100000001B3)


@compile_kernel
def update_word_hash(hash_: np.uint64, byte: int, before: int) -> np.uint64:
    """Add one byte, in lower case, to an FNV-1a hash; `before` is the byte before it.

    Lower case is applied to ASCII, and to Latin-1 letters encoded as UTF-8.
    """
    if 65 <= byte <= 90 or (before == 0xC3 and 0x80 <= byte <= 0x9E):
        byte |= 32
    return (hash_ ^ np.uint64(byte)) * FNV_PRIME


@compile_kernel
def is_word_byte(byte: int) -> bool:
    """Return whether `byte` is part of a word: a letter, a digit, or not ASCII."""
    return byte >= 128 or 97 <= byte <= 122 or 65 <= byte <= 90 or 48 <= byte <= 57


@compile_kernel
def hash_text(text: NDArray[np.uint8]) -> np.uint64:
    """Return the hash of `text` as one word."""
    hash_ = FNV_START
    before = 0
    for i in range(len(text)):
        hash_ = update_word_hash(hash_, int(text[i]), before)
        before = int(text[i])
    return hash_


@compile_kernel
def find_value(hash_: np.uint64, keys: NDArray[np.uint64], values: NDArray[np.int64]) -> int:
    """Return the value of the word with this hash, or 0 for a word that is not in the table."""
    slot = np.int64(hash_ & np.uint64(len(keys) - 1))
    while keys[slot] != 0:
        if keys[slot] == hash_:
            return int(values[slot])
        slot = (slot + 1) & (len(keys) - 1)
    return 0


def build_table(
    words: Mapping[str, int], slots: int
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Build a hash table (open addressing, 0 is free) of `words`: keys and values, [S] each."""
    keys = np.zeros(slots, np.uint64)
    values = np.zeros(slots, np.int64)
    for word, value in words.items():
        key = hash_text(np.frombuffer(word.encode(), np.uint8))
        slot = int(key) % slots
        while keys[slot] not in (0, key):
            slot = (slot + 1) % slots
        keys[slot] = key
        values[slot] |= value
    return keys, values
