"""Permutations that are computed, not stored."""

import hashlib
import math

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Words = NDArray[np.uint64]

# Of the Feistel network. Four good round functions would do (Luby & Rackoff 1988); hashes as quick
# as these want a margin.
ROUNDS = 8


def permute_indices(index: Integers, size: int, key: str) -> Integers:
    """Where the permutation of 0..size-1 that `key` picks takes each of `index`.

    A Feistel network permutes the next even number of bits; a result of `size` or more is put
    through again until it falls below (cycle-walking: Black & Rogaway 2002), at most four times on
    average. No table, so the order of 10^12 windows costs nothing to hold.
    """
    half_bits = np.uint64(max(1, math.ceil((size - 1).bit_length() / 2)))
    digest = hashlib.blake2b(key.encode(), digest_size=8 * ROUNDS).digest()
    round_keys = np.frombuffer(digest, dtype="<u8").astype(np.uint64)
    result = _apply_feistel(index.astype(np.uint64), half_bits, round_keys)
    while (outside := result >= size).any():
        result[outside] = _apply_feistel(result[outside], half_bits, round_keys)
    return result.astype(np.int64)


def _apply_feistel(index: Words, half_bits: np.uint64, round_keys: Words) -> Words:
    mask = (np.uint64(1) << half_bits) - np.uint64(1)
    left, right = index >> half_bits, index & mask
    for round_key in round_keys:
        left, right = right, left ^ (_scramble_words(right ^ round_key) & mask)
    return (left << half_bits) | right


def _scramble_words(words: Words) -> Words:
    """Each word scrambled, so that every bit of it counts (the finaliser of SplitMix64: Steele, Lea
    & Flood 2014)."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
