"""All ways to cut many words into pieces at once, as a graph whose edges are pieces.

A word of L characters has L + 1 boundaries, which have numbers of their own; a piece at a place
is an edge between two of them. Each sum goes over the words in steps of one boundary, all words
together, always in the same order.

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
    """Edges sorted by how far into its word each ends, then by the boundary where it ends."""

    start: Integers  # [E] boundary
    end: Integers  # [E] boundary
    depth: Integers  # [E] characters of the word up to `end`
    piece: Integers  # [E]
    first: Integers  # [W] boundary
    last: Integers  # [W] boundary
    count: Integers  # [W] times that the word occurs
    pieces: int

    @classmethod
    def of(
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
        """The lattice of edges in any order."""
        order = np.lexsort((start, end, depth))
        small = np.int32  # edges are most of what training holds
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

    def of_pieces(self, alive: NDArray[np.bool_]) -> Self:
        """Without the edges of pieces that are not `alive`. [P]"""
        kept = alive[self.piece]
        return replace(
            self,
            start=self.start[kept],
            end=self.end[kept],
            depth=self.depth[kept],
            piece=self.piece[kept],
        )

    def expect_uses(self, probability: Floats) -> Floats:
        """How often each piece is used, over all ways to cut each word by their probability. [P]

        Words that cannot be cut (a character of theirs is no piece) count for nothing.
        """
        weight = probability[self.piece]
        forward, backward = self._allocate_boundaries(0.0), self._allocate_boundaries(0.0)
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
        """The highest sum of scores of a way to cut each word; -inf if there is none. [W]"""
        best = self._allocate_boundaries(-np.inf)
        best[self.first] = 0
        for edges, begins, ends in self._list_steps():
            arriving = best[self.start[edges]] + score[self.piece[edges]]
            best[ends] = np.maximum.reduceat(arriving, begins)
        return best[self.last]

    def _allocate_boundaries(self, value: float) -> Floats:
        return np.full(int(self.last[-1]) + 1 if len(self.last) else 0, value)

    def _list_steps(self) -> list[tuple[slice, Integers, Integers]]:
        """For each depth: its edges, where among them a new end begins, and those ends."""
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
    """All ways to cut each piece into others: the edges inside an example of it.

    `place`, `length` [P]: where an example of each piece is. `start`, `edge_length`, `piece` [E]:
    the edges of the text, by place ascending.
    """
    begin = np.searchsorted(start, place, side="left")
    count = np.searchsorted(start, place + length, side="left") - begin
    word = np.repeat(np.arange(len(place)), count)
    edge = np.arange(len(word)) + np.repeat(begin - (np.cumsum(count) - count), count)
    offset = start[edge] - place[word]
    depth = offset + edge_length[edge]
    inside = (depth <= length[word]) & (piece[edge] != word)
    word, edge, offset, depth = word[inside], edge[inside], offset[inside], depth[inside]
    first = np.cumsum(length + 1) - (length + 1)
    return Lattice.of(
        first[word] + offset,
        first[word] + depth,
        depth,
        piece[edge],
        first=first,
        last=first + length,
        count=np.ones(len(place), dtype=np.int64),
        pieces=len(place),
    )
