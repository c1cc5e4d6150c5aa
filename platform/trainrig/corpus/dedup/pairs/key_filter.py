"""Filter for keys that occur more than once, at a few bits per key."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.compiled import compile_nogil

_SLOTS = 32  # slots in a 64-bit word; a slot has two bits: key seen, and key seen again


class KeyFilter:
    """Approximate set of keys seen more than once.

    Keys with equal low bits share a slot. So about one in `slots_a_key` unique keys is also
    reported as repeated. No repeated key is missed.
    """

    def __init__(self, keys: int, slots_a_key: int) -> None:
        """Size the filter for about `keys` different keys.

        The number of slots is rounded up to a power of two.
        """
        slots = 1 << max(_SLOTS - 1, keys * slots_a_key - 1).bit_length()
        self._slots = np.zeros(slots // _SLOTS, np.uint64)

    def add(self, keys: NDArray[np.unsignedinteger[Any]]) -> None:
        """Add keys to the filter."""
        _add(keys, self._slots)

    def appears_again(self, keys: NDArray[np.unsignedinteger[Any]]) -> NDArray[np.bool_]:
        """Return whether each key was added more than once, or shares a slot with another."""
        return _appears_again(keys, self._slots)


@compile_nogil
def _add(keys: NDArray[np.unsignedinteger[Any]], slots: NDArray[np.uint64]) -> None:
    last = np.uint64(len(slots) * _SLOTS - 1)
    one = np.uint64(1)
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
    last = np.uint64(len(slots) * _SLOTS - 1)
    one = np.uint64(1)
    found = np.empty(len(keys), np.bool_)
    for nth in range(len(keys)):
        slot = keys[nth] & last
        again = ((slot & np.uint64(_SLOTS - 1)) << one) + one
        found[nth] = slots[slot // np.uint64(_SLOTS)] >> again & one
    return found
