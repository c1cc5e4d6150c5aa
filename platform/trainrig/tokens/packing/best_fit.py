"""Packing pieces of documents into rows so that rows are full and pieces stay whole.

Best-fit-decreasing, as Ding et al. 2024 ("Fewer Truncations Improve Language Modeling",
arXiv:2404.10830, section 3.2) pack training text: the longest piece first, each into the row with
the least space that it fits in. They find the row by a tree over spaces, piece by piece; here all
pieces of one length are placed together, so the work grows with the number of lengths and spaces.

Shapes: N pieces.
"""

from collections import defaultdict, deque

import numpy as np

from trainrig.tokens.permutation import Integers


def pack_best_fit(lengths: Integers, capacity: int) -> Integers:
    """[N] the row that each piece goes to; rows are numbered from 0 in the order they are begun.

    `lengths`: [N], from 1 to `capacity` tokens. Of pieces of one length the first goes first; of
    rows with the same space left, the one that has had it longest is filled first.
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
    """Rows that are not full, by the space they have left."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._begun = 0
        # For each space, row numbers in the order in which they came to have it, in batches.
        self._queues: defaultdict[int, deque[Integers]] = defaultdict(deque)
        self._any = np.zeros(capacity + 1, dtype=np.bool_)  # whether a row has this space

    def fill(self, length: int, count: int) -> Integers:
        """The rows that the next of `count` pieces of `length` go to: as many as one batch takes.

        A row that takes one has then the least space of all, so the next piece goes there too,
        until it has no space for another: a batch of rows takes space // length each.
        """
        space = length + int(self._any[length:].argmax())
        if not self._any[space]:
            return self._begin(length, count)
        rows = self._queues[space].popleft()
        needed = -(-count // (space // length))
        if needed < len(rows):
            self._queues[space].appendleft(rows[needed:])
        self._any[space] = bool(self._queues[space])
        return self._put_pieces(rows[:needed], space, length, count)

    def _begin(self, length: int, count: int) -> Integers:
        needed = -(-count // (self._capacity // length))
        rows = np.arange(self._begun, self._begun + needed)
        self._begun += needed
        return self._put_pieces(rows, self._capacity, length, count)

    def _put_pieces(self, rows: Integers, space: int, length: int, count: int) -> Integers:
        """Put up to `count` pieces into `rows`, which have `space` left: the row of each piece."""
        each = space // length
        taken = np.repeat(rows, each)[:count]
        full, rest = divmod(len(taken), each)
        self._leave(rows[:full], space - each * length)
        if rest:
            self._leave(rows[full:], space - rest * length)
        return taken

    def _leave(self, rows: Integers, space: int) -> None:
        if len(rows) and space:
            self._queues[space].append(rows)
            self._any[space] = True
