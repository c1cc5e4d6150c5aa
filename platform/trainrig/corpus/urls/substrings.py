"""Search for many byte strings ("words") in many lines at once, in a single pass."""

from collections import defaultdict
from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

_PREFIX = 4  # most bytes of the prefix by which words are looked up at each position
_MULTIPLIER = np.uint32(0x9E3779B1)  # 2**32 / golden ratio, odd
_SHIFT = np.uint32(16)  # keeps the upper 16 bits of 32


class Substrings:
    """A set of words to search for, anywhere in a line.

    The cost grows with the lines, and hardly with the number of words.
    """

    def __init__(self, words: Collection[bytes]) -> None:
        self._width = min((*map(len, words), _PREFIX))
        self._by_prefix: defaultdict[bytes, list[bytes]] = defaultdict(list)
        for word in words:
            self._by_prefix[word[: self._width]].append(word)
        self._may_begin = np.zeros(2**16, bool)  # marks the slots of all prefixes
        for prefix in self._by_prefix:
            self._may_begin[_find_slots(prefix, self._width)] = True

    def count_words(self, lines: bytes) -> NDArray[np.int64]:
        """Return the number of different words contained in each line of `lines`.

        A line end at the end of `lines` is followed by one more, empty line. No word may contain a
        line end, as it would count for its first line.
        """
        ends = np.flatnonzero(np.frombuffer(lines, np.uint8) == ord("\n"))
        if not self._by_prefix:
            return np.zeros(len(ends) + 1, np.int64)
        found = np.flatnonzero(self._may_begin[_find_slots(lines, self._width)])
        owners = np.searchsorted(ends, found)
        pairs = {
            (owner, word)
            for at, owner in zip(found.tolist(), owners.tolist(), strict=True)
            for word in self._by_prefix.get(lines[at : at + self._width], ())
            if lines.startswith(word, at)
        }
        return np.bincount([owner for owner, _ in pairs], minlength=len(ends) + 1)


def _find_slots(joined: bytes, width: int) -> NDArray[np.uint32]:
    """Return the hash slot, of 2^16, of the `width` bytes from each position of `joined` on."""
    values = np.frombuffer(joined, np.uint8)
    codes = np.zeros(max(0, len(values) - width + 1), np.uint32)
    for offset in range(width):
        codes = (codes << np.uint32(8)) | values[offset : len(values) - width + 1 + offset]
    return (codes * _MULTIPLIER) >> _SHIFT
