"""n-grams of every order with adjusted counts, derived from the n-grams of the highest order.

The adjusted count of an n-gram of the highest order, or of one that begins with `<s>`, is its
number of occurrences; for others it is the number of different words before it (Kneser & Ney 1995).
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.models.kneser_ney.ngrams import BEGIN, Counts, Ids

Places = NDArray[np.int64]


class Level(NamedTuple):
    """The M n-grams of one order in suffix order: by last word, then the one before, and so on."""

    words_nM: Ids  # [n, M] first word first
    counts_M: Counts  # adjusted counts
    seen_M: Counts  # numbers of occurrences
    shorter_M: Places  # index in the level below of each n-gram without its first word


def build_levels(backward_nM: Ids, seen_M: Counts, vocabulary: int) -> list[Level]:
    """Build the levels of orders 1 to n from the result of `Counter.sum_counts`.

    The lowest level has all `vocabulary` words, including those that never occur.
    """
    order = len(backward_nM)
    found: list[Level] = []
    firsts = _find_firsts(backward_nM)
    # Whether a row has a valid n-gram of this order: one without <s> after its first word.
    there = np.ones(len(seen_M), np.bool_)
    below = np.empty(0, np.int64)
    for n in range(1, order + 1):
        if n > 2:
            there = there & (backward_nM[n - 2] != BEGIN)
        groups = np.flatnonzero(firsts[n - 1])
        held = there[groups]
        starts = groups[held]
        seen = _sum_groups(seen_M, groups)[held]
        counts = seen
        if n < order:
            before = _sum_groups(firsts[n].astype(np.int64), groups)[held]
            counts = np.where(backward_nM[n - 1][starts] == BEGIN, seen, before)
        words = backward_nM[n - 1 :: -1][:, starts]
        level = Level(words, counts, seen, below[starts] if n > 1 else starts)
        found.append(_complete_level(level, vocabulary) if n == 1 else level)
        below = np.cumsum(firsts[n - 1] & there) - 1
        if n == 1:
            below = backward_nM[0].astype(np.int64)  # the lowest level is indexed by word
    return found


def _find_firsts(backward_nM: Ids) -> list[NDArray[np.bool_]]:
    """Mark for each order the rows whose last words differ from the row before."""
    found = []
    new = np.zeros(backward_nM.shape[1], np.bool_)
    new[:1] = True
    for words_M in backward_nM:
        new = new.copy()
        new[1:] |= words_M[1:] != words_M[:-1]
        found.append(new)
    return found


def _sum_groups(values_M: Counts, starts: Places) -> Counts:
    return np.add.reduceat(values_M, starts) if len(starts) else values_M[:0]


def _complete_level(level: Level, vocabulary: int) -> Level:
    words = np.arange(vocabulary, dtype=np.uint32)
    counts, seen = np.zeros((2, vocabulary), np.int64)
    counts[level.words_nM[0]] = level.counts_M
    seen[level.words_nM[0]] = level.seen_M
    return Level(words[None], counts, seen, words.astype(np.int64))
