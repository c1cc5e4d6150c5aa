"""Search for many words in many lines at once, in a single pass."""

from collections import defaultdict
from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

_PREFIX = 4  # most bytes of a word's prefix, by which the candidates at a position are found
_MULTIPLIER = np.uint32(0x9E3779B1)  # 2**32 / golden ratio, odd
_KEPT_BITS = np.uint32(16)


class Substrings:
    """A set of words to search for.

    The cost grows with the lines, and hardly with the number of words.
    """

    def __init__(self, words: Collection[bytes]) -> None:
        self._width = min((*map(len, words), _PREFIX))
        self._by_prefix: defaultdict[bytes, list[bytes]] = defaultdict(list)
        for word in words:
            self._by_prefix[word[: self._width]].append(word)
        self._begins = np.zeros(2**16, bool)
        for prefix in self._by_prefix:
            self._begins[_find_slots(prefix, self._width)] = True

    def count_words(self, lines: bytes) -> NDArray[np.int64]:
        """Return the number of different words contained in each line of `lines`.

        No word may contain a line end.
        """
        ends = np.flatnonzero(np.frombuffer(lines, np.uint8) == ord("\n"))
        if not self._by_prefix:
            return np.zeros(len(ends) + 1, np.int64)
        found = np.flatnonzero(self._begins[_find_slots(lines, self._width)])
        owners = np.searchsorted(ends, found)
        pairs = {
            (owner, word)
            for at, owner in zip(found.tolist(), owners.tolist(), strict=True)
            for word in self._by_prefix.get(lines[at : at + self._width], ())
            if lines.startswith(word, at)
        }
        return np.bincount([owner for owner, _ in pairs], minlength=len(ends) + 1)


def _find_slots(joined: bytes, width: int) -> NDArray[np.uint32]:
    """Return the slot, of 2^16, for each run of `width` bytes in `joined`."""
    signs = np.frombuffer(joined, np.uint8)
    codes = np.zeros(max(0, len(signs) - width + 1), np.uint32)
    for offset in range(width):
        codes = (codes << np.uint32(8)) | signs[offset : len(signs) - width + 1 + offset]
    return (codes * _MULTIPLIER) >> _KEPT_BITS
