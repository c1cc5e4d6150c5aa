"""n-gram models with modified Kneser-Ney smoothing: estimation, and the trie that scores texts.

    p(w | h) = (c(hw) - D(c(hw))) / c(h·) + back-off(h) · p(w | h less its first word)

c are the adjusted counts (`ngram_counts`). Each order has three discounts D (Chen & Goodman 1998,
section 3). Below the lowest order is the uniform distribution over all words but `<s>`. KenLM's
lmplz estimates the same (Heafield et al. 2013); KenLM itself is not needed.

The trie holds n-grams of all orders in flat arrays. Nodes are numbered level by level: word w is
node w, then come the bigrams sorted by their words, then the trigrams, and so on. The children of a
node are adjacent, sorted by their last word, and end where those of the next node begin.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Self

import numpy as np

from trainrig.corpus.array_types import Bools, Float32s, Float64s, Int64s, UInt32s, UInt64s
from trainrig.corpus.compiled import compile_nogil
from trainrig.corpus.models.ngram_counts import (
    BEGIN,
    LONGEST,
    Counts,
    Ids,
    Level,
    Places,
    find_contexts,
    pack,
    sort_places,
)

NEVER = -100.0  # log10 of probability 0, as in KenLM

Logs = Float32s


class Trie(NamedTuple):
    """n-gram trie that contains all parts of each n-gram, as `estimate` and `arpa` ensure.

    Shapes: T nodes, C of them below the highest order. Logarithms are to base 10.
    """

    words_T: Ids  # last word of each n-gram
    logs_T: Logs  # log probability of the last word after the words before it
    back_offs_C: Logs  # log weight added for a word that never followed this n-gram
    children_C1: UInt32s | UInt64s  # [C + 1] first child; the last entry is T
    levels: Int64s  # [orders + 1] first node of each order; the last entry is T

    @classmethod
    def of(
        cls,
        words: Sequence[Ids],
        logs: Sequence[Float64s],
        back_offs: Sequence[Float64s],
        parents: Sequence[Int64s],
    ) -> Self:
        """Build a trie from the sorted n-grams of each order; `parents` start at order 2."""
        sizes = [len(order_words) for order_words in words]
        begins = np.cumsum([0, *sizes])
        children = [
            np.searchsorted(parent, np.arange(size)) + begin
            for parent, size, begin in zip(parents, sizes, begins[1:], strict=False)
        ]
        first = np.concatenate([*children, begins[-1:]])
        return cls(
            np.concatenate(words),
            np.concatenate(logs).astype(np.float32),
            np.concatenate([*back_offs, np.empty(0)]).astype(np.float32),
            first.astype(np.uint32) if begins[-1] < 2**32 else first.astype(np.uint64),
            begins.astype(np.int64),
        )

    @property
    def order(self) -> int:
        """The number of words in the longest n-grams."""
        return len(self.levels) - 1

    def score(self, stream: Ids) -> Logs:
        """Compute the log10 probability of each word of whole sentences `<s> word … </s>`.

        Each word is conditioned on the words before it; the value of each `<s>` is 0.
        """
        found = np.zeros(len(stream), np.float32)
        _score_stream(self.words_T, self.logs_T, self.back_offs_C, self.children_C1, stream, found)
        return found

    def iterate_grams(self, order: int) -> Iterator[tuple[Ids, Logs, Logs]]:
        """Yield the n-grams of one order in batches: words [n, M], log probabilities, back-offs."""
        first = int(self.levels[order - 1])
        last = int(self.levels[order])
        step = 1_000_000
        for begin in range(first, last, step):
            nodes = np.arange(begin, min(begin + step, last))
            logs = self.logs_T[nodes]
            back_offs = self.back_offs_C[nodes] if order < self.order else np.zeros_like(logs)
            words = np.empty((order, len(nodes)), np.uint32)
            for place in range(order - 1, -1, -1):
                words[place] = self.words_T[nodes]
                if place:
                    nodes = np.searchsorted(self.children_C1, nodes, side="right") - 1
            yield words, logs, back_offs


@compile_nogil
def _find_child(words: Ids, begin: np.int64, end: np.int64, word: np.int64) -> np.int64 | int:
    """Return the node among `begin` to `end` whose last word is `word`, or -1."""
    last = end
    while begin < end:
        middle = (begin + end) // 2
        if words[middle] < word:
            begin = middle + 1
        else:
            end = middle
    return begin if begin < last and words[begin] == word else -1


@compile_nogil
def _score_stream(
    words: Ids, logs: Logs, back_offs: Logs, children: UInt32s | UInt64s, stream: Ids, found: Logs
) -> None:
    inner = len(back_offs)
    # Nodes of the last word, the last two words, and so on, as far as the model contains them.
    nodes = np.empty(LONGEST, np.int64)
    longer = np.empty(LONGEST, np.int64)
    known = 0
    for place in range(len(stream)):
        word = np.int64(stream[place])
        if word == BEGIN:
            nodes[0] = word
            known = 1 if word < inner else 0
            continue
        longer[0] = word
        matched = 1
        while matched <= known:
            node = nodes[matched - 1]
            child = _find_child(words, np.int64(children[node]), np.int64(children[node + 1]), word)
            if child < 0:
                break
            longer[matched] = child
            matched += 1
        total = np.float64(logs[longer[matched - 1]])
        for missed in range(matched, known + 1):
            total += np.float64(back_offs[nodes[missed - 1]])
        found[place] = total
        known = 0
        while known < matched and longer[known] < inner:
            nodes[known] = longer[known]
            known += 1


Reals = Float64s

# Discounts of lmplz's --discount_fallback, for orders whose counts of counts give none.
FALLBACK = (0.5, 1.0, 1.5)


class Estimated(NamedTuple):
    """An estimated model with its discounts."""

    trie: Trie
    discounts: list[tuple[float, float, float]]  # three for each order
    fallback: list[int]  # orders that use FALLBACK


def estimate_discounts(counts_M: Counts) -> tuple[float, float, float] | None:
    """Estimate the discounts of counts 1, 2, and 3 or more; None if n-grams are too few."""
    t = [int(np.count_nonzero(counts_M == k)) for k in range(5)]
    if not (t[1] and t[2] and t[3]):
        return None
    y = t[1] / (t[1] + 2 * t[2])
    found = [k - (k + 1) * y * t[k + 1] / t[k] for k in (1, 2, 3)]
    if not all(0 <= discount <= k for k, discount in enumerate(found, 1)):
        return None
    return found[0], found[1], found[2]


def estimate(levels: Sequence[Level], least: Sequence[int]) -> Estimated:
    """Estimate a model that omits n-grams of order n with fewer than `least[n - 1]` occurrences.

    Discounts are estimated from all n-grams; the mass of omitted n-grams goes to the back-off.
    `least` must not decrease with the order, so that all parts of a kept n-gram are kept.
    """
    found = [estimate_discounts(level.counts_M) for level in levels]
    discounts = [estimated or FALLBACK for estimated in found]
    lowest = _estimate_lowest(levels[0], discounts[0])
    probabilities = [lowest]  # one array per level, in suffix order
    back_offs: list[Reals] = []  # one array per level but the highest, in prefix order
    below = _SortedLevel(levels[0].words_nM, np.arange(len(lowest)), np.arange(0))
    tables = [below]
    for level, discount, need in zip(levels[1:], discounts[1:], least[1:], strict=True):
        table = _sort_level(level, below)
        shares, back_off = _compute_shares(level, table, discount, need, below.words_nM.shape[1])
        of_context = np.empty_like(shares)
        of_context[table.places_M] = back_off[table.contexts_M]
        probabilities.append(shares + of_context * probabilities[-1][level.shorter_M])
        back_offs.append(back_off)
        tables.append(table)
        below = table
    stay = [
        np.ones(level.words_nM.shape[1], np.bool_) if n == 0 else level.seen_M >= least[n]
        for n, level in enumerate(levels)
    ]
    trie = _build_trie(tables, probabilities, back_offs, stay)
    return Estimated(
        trie, discounts, [n for n, estimated in enumerate(found, 1) if estimated is None]
    )


class _SortedLevel(NamedTuple):
    """The n-grams of a level in prefix order: by their first word, then the next, and so on."""

    words_nM: Ids
    places_M: Places  # index of each n-gram in the level
    contexts_M: Places  # index in the table below of each n-gram without its last word


def _sort_level(level: Level, below: _SortedLevel) -> _SortedLevel:
    places = sort_places(pack(level.words_nM))
    words = level.words_nM[:, places]
    return _SortedLevel(words, places, find_contexts(words, below.words_nM))


def _estimate_lowest(level: Level, discount: tuple[float, float, float]) -> Reals:
    """Estimate the probabilities of single words; `<s>` has 1 by convention."""
    total = max(1, int(level.counts_M.sum()))
    taken = _select_discounts(level.counts_M, discount)
    left = float(taken.sum()) / total if level.counts_M.any() else 1.0
    found = (level.counts_M - taken) / total + left / (len(taken) - 1)
    found[BEGIN] = 1.0
    return found


def _select_discounts(counts_M: Counts, discount: tuple[float, float, float]) -> Reals:
    return np.array([0.0, *discount])[np.minimum(counts_M, 3)]


def _compute_shares(
    level: Level,
    table: _SortedLevel,
    discount: tuple[float, float, float],
    need: int,
    contexts: int,
) -> tuple[Reals, Reals]:
    """Compute the discounted shares of n-grams, and the back-off weights of their contexts.

    The shares of the context's mass, before interpolation, are in suffix order; the weights of the
    `contexts` contexts, for shorter n-grams, are in prefix order.
    """
    counts = level.counts_M[table.places_M]
    left_out = level.seen_M[table.places_M] < need
    taken = np.where(left_out, counts, _select_discounts(counts, discount))
    totals = np.bincount(table.contexts_M, counts, contexts)
    mass = np.bincount(table.contexts_M, taken, contexts)
    back_off = np.divide(mass, totals, out=np.ones(contexts), where=totals > 0)
    shares = np.empty(len(counts))
    shares[table.places_M] = (counts - taken) / totals[table.contexts_M]
    return shares, back_off


def _build_trie(
    tables: Sequence[_SortedLevel],
    probabilities: Sequence[Reals],
    back_offs: Sequence[Reals],
    stay: Sequence[Bools],
) -> Trie:
    """Build the trie of the n-grams that are kept, level by level in prefix order."""
    kept = [stays[table.places_M] for stays, table in zip(stay, tables, strict=True)]
    words = [table.words_nM[-1][keeps] for table, keeps in zip(tables, kept, strict=True)]
    logs = [
        np.log10(probability[table.places_M][keeps])
        for probability, table, keeps in zip(probabilities, tables, kept, strict=True)
    ]
    # A context whose n-grams all have discount 0 leaves no mass; KenLM's logarithm for that is
    # used.
    held = [
        np.log10(np.maximum(back_off[keeps], 10.0**NEVER))
        for back_off, keeps in zip(back_offs, kept, strict=False)
    ]
    parents = []
    for table, keeps, above in zip(tables[1:], kept[1:], kept, strict=False):
        renumbered = np.cumsum(above) - 1
        parents.append(renumbered[table.contexts_M[keeps]])
    assert not math.isnan(sum(float(level_logs.sum()) for level_logs in logs))
    return Trie.of(words, logs, held, parents)
