"""Guests: documents that a stretch has pairs with and that lie in another one."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.dedup.pairs.document_reference import NAME, shelves_of
from trainrig.corpus.dedup.pairs.sorted_runs import Rows

# The document `ref` is a guest of the stretch `reader`.
GUEST = np.dtype([("reader", "u8"), ("ref", "u8")])
# The stretch `reader` is told what a document, its own or a guest, compares by.
TOLD_NAME = np.dtype([("reader", "u8"), *NAME.descr])
MOST_HELD = 2**18  # rows: 10 MB of the longer ones


def guests_of(
    owners: NDArray[np.uint64], others: NDArray[np.uint64], stretch_of: NDArray[np.int64]
) -> Rows:
    """The guests of the stretches of `owners` among the `others` [pairs, as many]."""
    readers, homes = stretch_of[shelves_of(owners)], stretch_of[shelves_of(others)]
    away = readers != homes
    rows = np.empty(np.count_nonzero(away), GUEST)
    rows["reader"], rows["ref"] = readers[away], others[away]
    return rows


def told_names(names: Rows, readers: NDArray[np.int64]) -> Rows:
    """TOLD_NAME of `names` for as many readers."""
    rows = np.empty(len(names), TOLD_NAME)
    rows["reader"] = readers
    for name in NAME.names or ():
        rows[name] = names[name]
    return rows


@dataclass
class Once:
    """Hands rows on in lots, by reader, each once in a lot: in several lots only if they are many.

    The rows have a `reader` and a `ref`, by which one is told from another.
    """

    hand_on: Callable[[Rows], None]
    most: int = field(default_factory=lambda: MOST_HELD)
    _held: list[Rows] = field(default_factory=list)
    _waiting: int = 0

    def add(self, rows: Rows) -> None:
        """Take rows in."""
        self._held.append(rows)
        self._waiting += len(rows)
        if self._waiting >= self.most:
            self._held, self._waiting = [_once(np.concatenate(self._held))], 0
            if len(self._held[0]) >= self.most:
                self.hand_on(self._held.pop())

    def close(self) -> None:
        """Hand on what is left."""
        if self._held:
            self.hand_on(_once(np.concatenate(self._held)))


def _once(rows: Rows) -> Rows:
    rows = np.take(rows, np.lexsort((rows["ref"], rows["reader"])))
    fresh = np.ones(len(rows), bool)
    fresh[1:] = (rows["ref"][1:] != rows["ref"][:-1]) | (rows["reader"][1:] != rows["reader"][:-1])
    return np.compress(fresh, rows)
