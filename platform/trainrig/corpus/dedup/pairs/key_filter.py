"""Which of many keys are there more than once, in few bits for each."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.compiled import compile_nogil

_SLOTS = 32  # in a number of 64 bits: of each two bits, that it was met, and that it was met again


class KeyFilter:
    """Tells of each key that it met whether it met it again.

    Keys of like low bits are not told apart: of keys that are there once it says, too, that they
    were met again, of about one in as many as it has slots a key.
    """

    def __init__(self, keys: int, slots_a_key: int) -> None:
        """For about so many different keys; slots are a power of two, so up to twice as many."""
        slots = 1 << max(_SLOTS - 1, keys * slots_a_key - 1).bit_length()
        self._slots = np.zeros(slots // _SLOTS, np.uint64)

    def add(self, keys: NDArray[np.unsignedinteger[Any]]) -> None:
        """Meet some keys."""
        _add(keys, self._slots)

    def appears_again(self, keys: NDArray[np.unsignedinteger[Any]]) -> NDArray[np.bool_]:
        """[keys] whether they were met more than once."""
        return _appears_again(keys, self._slots)


@compile_nogil
def _add(keys: NDArray[np.unsignedinteger[Any]], slots: NDArray[np.uint64]) -> None:
    last, one = np.uint64(len(slots) * _SLOTS - 1), np.uint64(1)
    for key in keys:
        slot = key & last
        bit = (slot & np.uint64(_SLOTS - 1)) << one
        there = slots[slot // np.uint64(_SLOTS)]
        again = (there >> bit & one) << bit + one
        slots[slot // np.uint64(_SLOTS)] = there | one << bit | again


@compile_nogil
def _appears_again(
    keys: NDArray[np.unsignedinteger[Any]], slots: NDArray[np.uint64]
) -> NDArray[np.bool_]:
    last, one = np.uint64(len(slots) * _SLOTS - 1), np.uint64(1)
    found = np.empty(len(keys), np.bool_)
    for nth in range(len(keys)):
        slot = keys[nth] & last
        again = ((slot & np.uint64(_SLOTS - 1)) << one) + one
        found[nth] = slots[slot // np.uint64(_SLOTS)] >> again & one
    return found
