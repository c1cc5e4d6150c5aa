"""Probabilities by interpolated modified Kneser-Ney smoothing (Chen & Goodman 1998, section 3).

    p(w | h) = (c(hw) - D(c(hw))) / c(h·) + back-off(h) · p(w | h less its first word)

c are the adjusted counts (levels.py). Each order has three discounts D. Below the lowest order is
the uniform distribution over all words but `<s>`. KenLM's lmplz estimates the same (Heafield et al.
2013).
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.models.kneser_ney.levels import Level, Places
from trainrig.corpus.models.kneser_ney.ngrams import (
    BEGIN,
    Counts,
    Ids,
    find_contexts,
    pack,
    sort_places,
)
from trainrig.corpus.models.kneser_ney.trie import NEVER, Trie

Reals = NDArray[np.float64]

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
    below = _Sorted(levels[0].words_nM, np.arange(len(lowest)), np.arange(0))
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


class _Sorted(NamedTuple):
    """The n-grams of a level in prefix order: by their first word, then the next, and so on."""

    words_nM: Ids
    places_M: Places  # index of each n-gram in the level
    contexts_M: Places  # index in the table below of each n-gram without its last word


def _sort_level(level: Level, below: _Sorted) -> _Sorted:
    places = sort_places(pack(level.words_nM))
    words = level.words_nM[:, places]
    return _Sorted(words, places, find_contexts(words, below.words_nM))


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
    level: Level, table: _Sorted, discount: tuple[float, float, float], need: int, contexts: int
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
    tables: Sequence[_Sorted],
    probabilities: Sequence[Reals],
    back_offs: Sequence[Reals],
    stay: Sequence[NDArray[np.bool_]],
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
