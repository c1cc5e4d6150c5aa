"""Pseudo-random permutations that are computed on demand instead of stored."""

import hashlib
import math

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Words = NDArray[np.uint64]

# Rounds of the Feistel network. Four rounds suffice with good round functions (Luby & Rackoff
# 1988); functions as fast as the one here need a margin.
ROUNDS = 8


def permute_indices(index: Integers, size: int, key: str) -> Integers:
    """Return the image of each of `index` under the permutation of 0..size-1 selected by `key`.

    A Feistel network permutes all numbers of the next even number of bits. A result of `size` or
    more is passed through it again until it is below (cycle-walking: Black & Rogaway 2002), four
    times or less on average. There is no table, so the order of 10^12 windows takes no memory.
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
    left = index >> half_bits
    right = index & mask
    for round_key in round_keys:
        left, right = right, left ^ (_scramble_words(right ^ round_key) & mask)
    return (left << half_bits) | right


def _scramble_words(words: Words) -> Words:
    """Return the words with all their bits mixed.

    This is the finaliser of SplitMix64 (Steele, Lea & Flood 2014).
    """
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
