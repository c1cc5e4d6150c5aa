"""A set of strings for asking only, at 8 bytes a string: block lists have millions."""

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray


class HashSet:
    """Which strings it holds, by BLAKE2b-64: of those it does not, one in 2^64 / size is held."""

    def __init__(self, strings: Iterable[str]) -> None:
        self._hashes = np.unique(_hash_strings(strings))

    def __len__(self) -> int:
        return len(self._hashes)

    def holds(self, strings: Sequence[str]) -> NDArray[np.bool_]:
        """For each of `strings` whether it is in the set."""
        if not len(self):
            return np.zeros(len(strings), bool)
        asked = _hash_strings(strings)
        at = np.searchsorted(self._hashes, asked)
        held: NDArray[np.bool_] = self._hashes[np.minimum(at, len(self) - 1)] == asked
        return held


def _hash_strings(strings: Iterable[str]) -> NDArray[np.uint64]:
    encoded = (each.encode("utf-8", "surrogatepass") for each in strings)
    digests = (hashlib.blake2b(each, digest_size=8).digest() for each in encoded)
    return np.fromiter((int.from_bytes(each, "little") for each in digests), np.uint64)
