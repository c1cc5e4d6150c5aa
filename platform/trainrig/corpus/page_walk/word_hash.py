"""Hashes of words, and tables that map words to numbers, for compiled code.

Shapes: S slots of a table, a power of two.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np

from trainrig.corpus.array_types import Int64s, UInt8s
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
def hash_text(text: UInt8s, start: int, end: int) -> np.uint64:
    """Return the hash of a part of `text` as one word."""
    hash_ = FNV_START
    before = 0
    for i in range(start, end):
        hash_ = update_word_hash(hash_, int(text[i]), before)
        before = int(text[i])
    return hash_


@compile_kernel
def find_row(hash_: np.uint64, table: Int64s) -> int:
    """Return the row of the key `hash_` in a table of `build_table`, or a row of zeros."""
    key = np.int64(hash_)
    last = len(table) - 1
    slot = key & last
    while table[slot, 0] != key and table[slot, 0] != 0:
        slot = (slot + 1) & last
    return int(slot)


def build_table(words: Mapping[tuple[str, int], tuple[int, ...]], slots: int) -> Int64s:
    """Build a hash table (open addressing, 0 is free) of `words`: [S, 1 + values].

    The key of a word, in the first column, is the exclusive or of its hash and the number after it.
    """
    width = len(next(iter(words.values())))
    table = np.zeros((slots, 1 + width), np.int64)
    for (word, kind), values in words.items():
        text = np.frombuffer(word.encode(), np.uint8)
        key = np.uint64(hash_text(text, 0, len(text))) ^ np.uint64(kind)
        row = table[find_row(key, table)]
        row[0] = key.astype(np.int64)
        row[1:] = values
    return table
