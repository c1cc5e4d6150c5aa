"""Best-fit packing of pieces of documents into rows, without cutting the pieces.

This is best-fit decreasing, as Ding et al. 2024 ("Fewer Truncations Improve Language Modeling",
arXiv:2404.10830, section 3.2) use it for training text: the longest piece first, each into the row
with the least space in which it fits. They find this row for one piece at a time, in a tree of
spaces. Here all pieces of the same length are placed together, so the work grows with the number of
different lengths and spaces.

Shapes: N pieces.
"""

from collections import defaultdict, deque

import numpy as np

from trainrig.tokens.permutation import Integers


def pack_best_fit(lengths: Integers, capacity: int) -> Integers:
    """Return [N] the row of each piece; rows are numbered from 0 in the order of their creation.

    `lengths` is [N], each from 1 to `capacity` tokens. Pieces of equal length are placed in their
    order. Of rows with the same space left, the one that has had that space longest is filled
    first.
    """
    by_length = np.argsort(-lengths, kind="stable")
    row_of = np.empty(len(lengths), dtype=np.int64)
    rows = _OpenRows(capacity)
    placed = 0
    counts = np.bincount(lengths, minlength=1)
    for length in np.flatnonzero(counts)[::-1].tolist():
        end = placed + int(counts[length])
        while placed < end:
            taken = rows.fill(length, end - placed)
            row_of[by_length[placed : placed + len(taken)]] = taken
            placed += len(taken)
    return row_of


class _OpenRows:
    """The rows that are not full, grouped by the space that they have left."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._begun = 0
        # space -> row numbers in the order in which they came to have this space, in batches
        self._queues: defaultdict[int, deque[Integers]] = defaultdict(deque)
        self._has_space = np.zeros(
            capacity + 1, dtype=np.bool_
        )  # [space] whether a row has this space

    def fill(self, length: int, count: int) -> Integers:
        """Place up to `count` pieces of `length` into one batch of rows; return the row of each.

        A row that received a piece has the least space in which another can fit, so further pieces
        go to the same row until it is full: each row of a batch takes space // length pieces.
        """
        space = length + int(self._has_space[length:].argmax())
        if not self._has_space[space]:
            return self._open_rows(length, count)
        rows = self._queues[space].popleft()
        needed = -(-count // (space // length))
        if needed < len(rows):
            self._queues[space].appendleft(rows[needed:])
        self._has_space[space] = bool(self._queues[space])
        return self._put_pieces(rows[:needed], space, length, count)

    def _open_rows(self, length: int, count: int) -> Integers:
        needed = -(-count // (self._capacity // length))
        rows = np.arange(self._begun, self._begun + needed)
        self._begun += needed
        return self._put_pieces(rows, self._capacity, length, count)

    def _put_pieces(self, rows: Integers, space: int, length: int, count: int) -> Integers:
        """Put up to `count` pieces into `rows` with `space` left; return the row of each piece."""
        pieces_per_row = space // length
        taken = np.repeat(rows, pieces_per_row)[:count]
        full, rest = divmod(len(taken), pieces_per_row)
        self._queue_rows(rows[:full], space - pieces_per_row * length)
        if rest:
            self._queue_rows(rows[full:], space - rest * length)
        return taken

    def _queue_rows(self, rows: Integers, space: int) -> None:
        if len(rows) and space:
            self._queues[space].append(rows)
            self._has_space[space] = True
