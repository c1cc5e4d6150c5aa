"""All ways to cut many words into pieces, as one graph whose edges are pieces.

A word of L characters has L + 1 boundaries, numbered across all words. A piece at a place in a word
is an edge between two boundaries. Sums are computed for all words together, one boundary of each
word at a time, always in the same order, so that their bits are always the same.

Shapes: B boundaries of all words, W words, E edges, P pieces.
"""

import itertools
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.integer[Any]]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Lattice:
    """The graph; edges are sorted by their end's depth in its word, then by their end boundary."""

    start: Integers  # [E] boundary where the edge starts
    end: Integers  # [E] boundary where the edge ends
    depth: Integers  # [E] characters of the word up to `end`
    piece: Integers  # [E] number of the piece
    first: Integers  # [W] first boundary of the word
    last: Integers  # [W] last boundary of the word
    count: Integers  # [W] occurrences of the word
    pieces: int  # number of pieces: P

    @classmethod
    def from_edges(
        cls,
        start: Integers,
        end: Integers,
        depth: Integers,
        piece: Integers,
        first: Integers,
        last: Integers,
        count: Integers,
        pieces: int,
    ) -> Self:
        """Return the lattice of edges that are given in any order."""
        order = np.lexsort((start, end, depth))
        small = np.int32  # edges take most of the memory of training
        return cls(
            start[order].astype(small),
            end[order].astype(small),
            depth[order].astype(np.int16),
            piece[order].astype(small),
            first,
            last,
            count,
            pieces,
        )

    def keep_pieces(self, alive: NDArray[np.bool_]) -> Self:
        """Return the lattice without the edges of pieces for which `alive` [P] is false."""
        kept = alive[self.piece]
        return replace(
            self,
            start=self.start[kept],
            end=self.end[kept],
            depth=self.depth[kept],
            piece=self.piece[kept],
        )

    def expect_uses(self, probability: Floats) -> Floats:
        """Return [P] the expected uses of each piece, over all ways to cut each word.

        The ways are weighted by their probabilities. A word that cannot be cut, because one of its
        characters is not a piece, does not contribute.
        """
        weight = probability[self.piece]
        forward = self._allocate_boundaries(0.0)
        backward = self._allocate_boundaries(0.0)
        forward[self.first] = 1
        backward[self.last] = 1
        steps = self._list_steps()
        for edges, begins, ends in steps:
            arriving = forward[self.start[edges]] * weight[edges]
            forward[ends] = np.add.reduceat(arriving, begins)
        for edges, _, _ in reversed(steps):
            leaving = weight[edges] * backward[self.end[edges]]
            np.add.at(backward, self.start[edges], leaving)
        likelihood = forward[self.last]
        possible = likelihood > 0
        share = np.zeros(len(self.first))
        share[possible] = self.count[possible] / likelihood[possible]
        word = np.searchsorted(self.first, self.start, side="right") - 1
        uses = forward[self.start] * weight * backward[self.end] * share[word]
        return np.bincount(self.piece, weights=uses, minlength=self.pieces).astype(np.float64)

    def find_best_scores(self, score: Floats) -> Floats:
        """Return [W] the highest sum of scores over the ways to cut each word; -inf if none."""
        best = self._allocate_boundaries(-np.inf)
        best[self.first] = 0
        for edges, begins, ends in self._list_steps():
            arriving = best[self.start[edges]] + score[self.piece[edges]]
            best[ends] = np.maximum.reduceat(arriving, begins)
        return best[self.last]

    def _allocate_boundaries(self, value: float) -> Floats:
        return np.full(int(self.last[-1]) + 1 if len(self.last) else 0, value)

    def _list_steps(self) -> list[tuple[slice, Integers, Integers]]:
        """Return, for each depth, its edges, the start of each group with one end, and those ends.

        The starts are indices into the depth's edges; the first is 0.
        """
        cuts = np.flatnonzero(np.diff(self.depth)) + 1
        borders = [0, *cuts.tolist(), len(self.depth)] if len(self.depth) else [0]
        steps = []
        for low, high in itertools.pairwise(borders):
            ends = self.end[low:high]
            begins = np.concatenate([[0], np.flatnonzero(np.diff(ends)) + 1])
            steps.append((slice(low, high), begins, ends[begins]))
        return steps


def find_inner_spans(
    place: Integers, length: Integers, start: Integers, edge_length: Integers, piece: Integers
) -> Lattice:
    """Return the lattice of all ways to cut each piece into other pieces: each piece is a word.

    The edges are those inside one occurrence of the piece, without the piece itself. `place` and
    `length` [P] locate an occurrence of each piece. `start`, `edge_length` and `piece` [E] are the
    edges of the concatenated words, sorted by `start`.
    """
    begin = np.searchsorted(start, place, side="left")
    count = np.searchsorted(start, place + length, side="left") - begin
    word = np.repeat(np.arange(len(place)), count)
    edge = np.arange(len(word)) + np.repeat(begin - (np.cumsum(count) - count), count)
    offset = start[edge] - place[word]
    depth = offset + edge_length[edge]
    inside = (depth <= length[word]) & (piece[edge] != word)
    word = word[inside]
    edge = edge[inside]
    offset = offset[inside]
    depth = depth[inside]
    first = np.cumsum(length + 1) - (length + 1)
    return Lattice.from_edges(
        first[word] + offset,
        first[word] + depth,
        depth,
        piece[edge],
        first=first,
        last=first + length,
        count=np.ones(len(place), dtype=np.int64),
        pieces=len(place),
    )
