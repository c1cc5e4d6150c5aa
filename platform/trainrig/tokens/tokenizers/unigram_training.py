"""Training of a unigram model's pieces and probabilities (Kudo 2018, arXiv:1804.10959, 3.2).

Training starts with many candidates. Each round estimates the pieces' probabilities by EM over all
ways to cut each word, which maximises the likelihood of the words, and then drops the pieces whose
loss would reduce the likelihood least. This is SentencePiece's method, except for the loss of a
piece: here each expected use of the piece is replaced by its own best cut into other pieces.

The tokenizers library has a trainer too, but it visits words in the order of a hash table that
differs from run to run. So its sums differ, and at near ties its pieces. Here words are sorted and
summed by one thread: the same words give the same pieces on the same kind of machine.

All ways to cut many words into pieces are one graph, whose edges are pieces (`Lattice`).

A word of L characters has L + 1 boundaries, numbered across all words. A piece at a place in a word
is an edge between two boundaries. Sums are computed for all words together, one boundary of each
word at a time, always in the same order, so that their bits are always the same.

Shapes: W words, N characters of all words, B boundaries of all words, E edges (a piece at a place
in a word), P pieces, L characters of a word or piece.
"""

import itertools
from collections.abc import Mapping
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


# SentencePiece's values: the longest piece in characters, the alphabet's share of all characters in
# the text, the share of pieces that a round keeps, and the EM steps in a round.
LONGEST_PIECE = 16
COVERAGE = 0.9995
KEPT_BY_A_ROUND = 0.75
STEPS_OF_A_ROUND = 2
# Candidates for each wanted piece. SentencePiece takes a million for any vocabulary: about 30.
CANDIDATES = 10
SEEN = 2  # minimum number of occurrences of a candidate
# Characters after which a word is cut, in training only: FLOOR to this power is still a float64.
WORD_LIMIT = 32
FLOOR = 1e-9  # lowest probability of a piece: once in 10^9 pieces


def choose_pieces(count_of: Mapping[str, int], wanted: int, always: str) -> dict[str, float]:
    """Return at most `wanted` pieces, with the logarithms of their probabilities, for some words.

    Args:
        count_of: The words, with the number of their occurrences.
        wanted: Number of pieces; the result has fewer only if the words have no more strings that
            occur twice.
        always: Characters that are pieces whatever the words; fewer than `wanted`. The most common
            other characters follow, until all but 0.05% of the words' characters are covered.

    Returns:
        Log-probability by piece, most probable first.
    """
    if not count_of:
        return dict.fromkeys(always, float(np.log(FLOOR)))
    words = _Words.from_counts(count_of)
    alphabet = _choose_alphabet(words, wanted, always)
    candidates = _Candidates.from_words(words, alphabet, CANDIDATES * wanted)
    unseen = [c for c in always if c not in set(candidates.pieces)]
    pieces, probability = _drop_candidates(words, candidates, wanted - len(unseen))
    scores = dict(zip(pieces, np.log(probability).tolist(), strict=True))
    scores |= dict.fromkeys(unseen, float(np.log(FLOOR)))
    return dict(sorted(scores.items(), key=lambda piece: (-piece[1], piece[0])))


@dataclass(frozen=True)
class _Words:
    """The words in sorted order, concatenated, with facts about the word of each character."""

    text: str
    points: Integers  # [N] code point of each character
    begin: Integers  # [N] where the character's word begins
    end: Integers  # [N] where the character's word ends
    count: Integers  # [N] occurrences of the character's word

    @classmethod
    def from_counts(cls, count_of: Mapping[str, int]) -> "_Words":
        pieces = [
            (word[start : start + WORD_LIMIT], count)
            for word, count in sorted(count_of.items())
            for start in range(0, len(word), WORD_LIMIT)
        ]
        text = "".join(piece for piece, _ in pieces)
        lengths = np.array([len(piece) for piece, _ in pieces], dtype=np.int64)
        ends = np.cumsum(lengths)
        return cls(
            text,
            np.frombuffer(text.encode("utf-32-le"), dtype="<u4").astype(np.int64),
            np.repeat(ends - lengths, lengths),
            np.repeat(ends, lengths),
            np.repeat(np.array([count for _, count in pieces], dtype=np.int64), lengths),
        )


def _choose_alphabet(words: _Words, room: int, always: str) -> set[str]:
    """Return the characters that are pieces; all others are encoded as their bytes."""
    points, place = np.unique(words.points, return_inverse=True)
    uses = np.bincount(place, weights=words.count, minlength=len(points)).astype(np.int64)
    commonest = np.argsort(-uses, kind="stable")
    before = np.cumsum(uses[commonest]) - uses[commonest]
    covering = commonest[before < COVERAGE * uses.sum()]
    others = [chr(p) for p in points[covering] if chr(p) not in always]
    return {*always, *others[: room - len(always)]}


@dataclass(frozen=True)
class _Candidates:
    """Candidate pieces and all their occurrences; single characters come first."""

    pieces: list[str]
    characters: int  # number of single characters
    example: Integers  # [P] position of one occurrence of each piece
    start: Integers  # [E] position of each occurrence, ascending
    length: Integers  # [E] characters of each occurrence
    piece: Integers  # [E] number of its piece

    @classmethod
    def from_words(cls, words: _Words, alphabet: set[str], limit: int) -> "_Candidates":
        """Choose the characters of `alphabet` that occur, and the strings that save the most.

        Together they are at most `limit`, unless the characters alone are more.
        """
        found = _find_substrings(words, alphabet)
        example = np.concatenate([first for first, _, _, _ in found])
        length = np.repeat(np.arange(1, len(found) + 1), [len(first) for first, _, _, _ in found])
        uses = np.concatenate([uses for _, uses, _, _ in found])
        characters = len(found[0][0])
        longer = np.arange(characters, len(uses))
        by_saving = longer[np.argsort(-(uses * length)[longer], kind="stable")]
        chosen = np.concatenate([np.arange(characters), by_saving[: max(0, limit - characters)]])
        number = np.full(len(uses), -1)
        number[chosen] = np.arange(len(chosen))
        known = np.cumsum([0, *(len(first) for first, _, _, _ in found)])
        start = np.concatenate([places for _, _, places, _ in found])
        edge_length = np.repeat(np.arange(1, len(found) + 1), [len(p) for _, _, p, _ in found])
        piece = number[
            np.concatenate([which + known[i] for i, (_, _, _, which) in enumerate(found)])
        ]
        order = np.argsort(start, kind="stable")
        order = order[piece[order] >= 0]
        return cls(
            [words.text[b : b + n] for b, n in zip(example[chosen], length[chosen], strict=True)],
            characters,
            example[chosen],
            start[order],
            edge_length[order],
            piece[order],
        )


def _find_substrings(
    words: _Words, alphabet: set[str]
) -> list[tuple[Integers, Integers, Integers, Integers]]:
    """Find the strings of each length, from 1, that occur inside words often enough.

    Returns, for each length: the position of one occurrence of each string, the strings' uses, the
    positions of all occurrences, and the number of the string at each of these. A string is
    identified by the number of its first L - 1 characters and by its last character.
    """
    points, last = np.unique(words.points, return_inverse=True)
    covered = np.array([chr(point) in alphabet for point in points], dtype=bool)
    places = np.flatnonzero(covered[last])
    which = last[places]
    found: list[tuple[Integers, Integers, Integers, Integers]] = []
    for length in range(1, LONGEST_PIECE + 1):
        if length > 1:
            whole = places + length <= words.end[places]
            places = places[whole]
            which = which[whole]
            ends = covered[last[places + length - 1]]
            places = places[ends]
            which = which[ends]
            which = which * len(points) + last[places + length - 1]
        _, first, which = np.unique(which, return_index=True, return_inverse=True)
        uses = np.bincount(which, weights=words.count[places], minlength=len(first))
        often = uses >= (SEEN if length > 1 else 1)
        number = np.cumsum(often) - 1
        kept = often[which]
        first = places[first][often]
        uses = uses[often].astype(np.int64)
        places = places[kept]
        which = number[which[kept]]
        # There are several times as many occurrences as characters in all words: a gigabyte for a
        # sample of 100 MB, at 4 bytes each.
        found.append((first, uses, places.astype(np.int32), which.astype(np.int32)))
    return found


def _drop_candidates(
    words: _Words, candidates: _Candidates, wanted: int
) -> tuple[list[str], Floats]:
    """Drop candidates round by round, down to `wanted`; return the rest and [P] probabilities."""
    total = len(candidates.pieces)
    uses = np.bincount(
        candidates.piece, weights=words.count[candidates.start], minlength=total
    ).astype(np.float64)
    probability = np.maximum(uses / uses.sum(), FLOOR)
    alive = np.ones(total, dtype=bool)
    corpus = _build_lattice(words, candidates)
    inside = find_inner_spans(
        candidates.example,
        np.array([len(piece) for piece in candidates.pieces], dtype=np.int64),
        candidates.start,
        candidates.length,
        candidates.piece,
    )
    while True:
        for _ in range(STEPS_OF_A_ROUND):
            expected = corpus.expect_uses(probability)
            probability = _estimate_probabilities(expected)
        size = int(alive.sum())
        if size <= wanted:
            return [candidates.pieces[i] for i in np.flatnonzero(alive)], probability[alive]
        scores = np.log(probability)
        longer = slice(candidates.characters, None)
        loss = np.full(len(alive), np.inf)  # single characters are never dropped
        loss[longer] = expected[longer] * (scores[longer] - inside.find_best_scores(scores)[longer])
        loss[~alive] = -np.inf
        kept = np.argsort(-loss, kind="stable")[: max(wanted, int(size * KEPT_BY_A_ROUND))]
        alive[:] = False
        alive[kept] = True
        corpus = corpus.keep_pieces(alive)
        inside = inside.keep_pieces(alive)


def _build_lattice(words: _Words, candidates: _Candidates) -> Lattice:
    """Return all ways to cut the words.

    The number of a boundary is its position in the text plus the number of words before it.
    """
    firsts = np.flatnonzero(words.begin == np.arange(len(words.begin)))
    word = np.searchsorted(firsts, candidates.start, side="right") - 1
    start = candidates.start + word
    lengths = words.end[firsts] - firsts
    return Lattice.from_edges(
        start,
        start + candidates.length,
        candidates.start - firsts[word] + candidates.length,
        candidates.piece,
        first=firsts + np.arange(len(firsts)),
        last=firsts + lengths + np.arange(len(firsts)),
        count=words.count[firsts],
        pieces=len(candidates.pieces),
    )


def _estimate_probabilities(expected: Floats) -> Floats:
    """Return the probabilities of pieces that are used `expected` times.

    exp(digamma(uses)) is the variational Bayes estimate under a sparse prior, as in SentencePiece.
    Rare pieces get less than their share of the uses.
    """
    uses = np.maximum(expected, 0.01)  # digamma goes to minus infinity at 0
    return np.maximum(np.exp(_digamma(uses) - _digamma(uses.sum(keepdims=True))), FLOOR)


def _digamma(x: Floats) -> Floats:
    """Return the derivative of log gamma, to about 1e-9 (Abramowitz and Stegun, 6.3.5, 6.3.18)."""
    result = np.zeros_like(x)
    for step in range(6):
        result -= 1 / (x + step)
    x = x + 6
    square = 1 / (x * x)
    return result + np.log(x) - 0.5 / x - square * (1 / 12 - square * (1 / 120 - square / 252))
