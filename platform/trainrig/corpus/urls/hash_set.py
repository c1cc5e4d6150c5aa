"""Read-only set of strings at 8 bytes each, for block lists of millions of entries."""

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray


class HashSet:
    """Approximate set of strings, stored as 64-bit BLAKE2b hashes.

    A string outside the set is reported as a member with probability size / 2^64.
    """

    def __init__(self, strings: Iterable[str]) -> None:
        self._hashes = np.unique(_hash_strings(strings))

    def __len__(self) -> int:
        return len(self._hashes)

    def holds(self, strings: Sequence[str]) -> NDArray[np.bool_]:
        """Return whether each of `strings` is in the set, as an array."""
        if not len(self):
            return np.zeros(len(strings), bool)
        asked = _hash_strings(strings)
        at = np.searchsorted(self._hashes, asked)
        held: NDArray[np.bool_] = self._hashes[np.minimum(at, len(self) - 1)] == asked
        return held


def _hash_strings(strings: Iterable[str]) -> NDArray[np.uint64]:
    encoded = (string.encode("utf-8", "surrogatepass") for string in strings)
    digests = (hashlib.blake2b(string, digest_size=8).digest() for string in encoded)
    return np.fromiter((int.from_bytes(digest, "little") for digest in digests), np.uint64)
