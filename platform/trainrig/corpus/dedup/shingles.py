"""A text as the set of its word n-grams, each a 64-bit hash, and how alike two such sets are.

Normalisation: lower case, split at every character that is no letter, digit or underscore. A text
of fewer words than a shingle is one shingle, so that equal short texts are equal and all others
are not. Scripts that put no space between words (Chinese, Thai) give shingles of whole phrases:
their near-duplicates are found less often, never more.
"""

import hashlib
import re

import numpy as np
from numpy.typing import NDArray

_WORD = re.compile(r"\w+")


def mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """MurmurHash3's 64-bit finaliser: a bijection after which each bit depends on all bits."""
    values = (values ^ (values >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    values = (values ^ (values >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    return values ^ (values >> np.uint64(33))


def shingle(text: str, words: int) -> NDArray[np.uint64]:
    """The sorted hashes of all runs of `words` words in `text`, each once.

    Among the 10^5 shingles of a long book some two share a hash with a probability of 3e-10.
    """
    split = _WORD.findall(text.lower())
    hashes = {word: _hash(word) for word in set(split)}
    ids = np.fromiter(map(hashes.__getitem__, split), np.uint64, len(split))
    length = min(words, len(ids))
    grams = np.zeros(len(ids) - length + 1, np.uint64)
    for k in range(length):
        # Multiplied so that the order of the words matters.
        grams = mix(grams * np.uint64(0x9E3779B97F4A7C15) + ids[k : k + len(grams)])
    return np.unique(grams)


def jaccard(a: NDArray[np.uint64], b: NDArray[np.uint64]) -> float:
    """The shared part of two sorted sets: size of the intersection by size of the union."""
    common = len(np.intersect1d(a, b, assume_unique=True))
    return common / (len(a) + len(b) - common)


def _hash(word: str) -> int:
    digest = hashlib.blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little")
