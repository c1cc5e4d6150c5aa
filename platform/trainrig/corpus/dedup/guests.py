"""Guests: documents that a stretch has pairs with and that lie in another one."""

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.dedup.names import shelves_of
from trainrig.corpus.dedup.runs import Rows

# The document `ref` is a guest of the stretch `reader`.
GUEST = np.dtype([("reader", "u8"), ("ref", "u8")])
_LOT = 2**19  # guests: 8 MB


def guests_of(
    owners: NDArray[np.uint64], others: NDArray[np.uint64], stretch_of: NDArray[np.int64]
) -> Rows:
    """The guests of the stretches of `owners` among the `others` [pairs, as many], each once."""
    readers, homes = stretch_of[shelves_of(owners)], stretch_of[shelves_of(others)]
    away = readers != homes
    rows = np.empty(np.count_nonzero(away), GUEST)
    rows["reader"], rows["ref"] = readers[away], others[away]
    return _once(rows)


def lots(guests: Iterable[Rows], most: int = _LOT) -> Iterator[Rows]:
    """`guests` some at a time, by reader, each once in a lot; in several lots only if many."""
    held, waiting = [np.empty(0, GUEST)], 0
    for rows in guests:
        held.append(rows)
        waiting += len(rows)
        if waiting >= most:
            held, waiting = [_once(np.concatenate(held))], 0
            if len(held[0]) >= most:
                yield held.pop()
    if held:
        yield _once(np.concatenate(held))


def _once(guests: Rows) -> Rows:
    guests = np.take(guests, np.lexsort((guests["ref"], guests["reader"])))
    fresh = np.ones(len(guests), bool)
    fresh[1:] = guests[1:] != guests[:-1]
    return np.compress(fresh, guests)
