"""From the n-grams of the highest order to those of every order, each with its adjusted count.

The adjusted count of an n-gram of the highest order, or one that begins with `<s>`, is how often it
came; of any other, how many different words came before it (Kneser & Ney 1995).
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.models.kneser_ney.ngrams import BEGIN, Counts, Ids

Places = NDArray[np.int64]


class Level(NamedTuple):
    """The M n-grams of one order in suffix order: by their last word, then the one before, …"""

    words_nM: Ids  # first word first
    counts_M: Counts  # adjusted
    seen_M: Counts  # how often each came
    shorter_M: Places  # where the level below has each, less its first word


def build_levels(backward_nM: Ids, seen_M: Counts, vocabulary: int) -> list[Level]:
    """The levels of orders 1, 2, … n, by what `Counter.sum_counts` gave.

    The lowest has all `vocabulary` words, also those that never came.
    """
    order = len(backward_nM)
    found: list[Level] = []
    firsts = _find_firsts(backward_nM)
    # Whether a row has an n-gram of this order, and where: none holds <s> after its first word.
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
    """For each order, which rows differ from the one before in their last words of that number."""
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
