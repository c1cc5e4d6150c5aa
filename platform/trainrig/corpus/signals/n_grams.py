"""Repetition of word n-grams in a text (Rae et al. 2021, table A1).

An n-gram can repeat only where its (n - 1)-gram does. So each order examines only the positions
that the order before has left, which are few after the bigrams.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.compiled import compile_nogil
from trainrig.corpus.signals.text_arrays.hashing import (
    allocate_seen,
    compute_table_size,
    count_again,
    mix_bits,
)
from trainrig.corpus.signals.text_arrays.words import BatchWords

TOPS = (2, 3, 4)
DUPLICATES = (5, 6, 7, 8, 9, 10)
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # 2**64 / golden ratio, rounded to an odd number


class Repetition(NamedTuple):
    """Characters of words in repeated n-grams, for each text."""

    tops: NDArray[np.int64]  # [D, 3] in all occurrences of the most frequent n-gram, n = 2, 3, 4
    duplicates: NDArray[np.int64]  # [D, 6] inside n-grams that occurred before, n = 5 to 10


def measure_repetition(words: BatchWords) -> Repetition:
    """Measure the characters in each text's top n-grams and in its duplicate n-grams.

    Of equally frequent n-grams the longest is the top one; an n-gram that occurs once is none.
    Occurrences may overlap: "a a a" contains "a a" twice. A word inside several duplicates counts
    once.
    """
    firsts = words.firsts_D1
    texts = len(firsts) - 1
    most = int(np.diff(firsts).max(initial=0))
    found = Repetition(
        np.zeros((texts, len(TOPS)), np.int64), np.zeros((texts, len(DUPLICATES)), np.int64)
    )
    table = allocate_seen(most)
    positions = np.empty(most, np.int64)
    places = np.empty(most, np.int64)
    grams = np.empty(most, np.uint64)
    _count_repetition(
        words.hashes_W, words.before_W1, firsts, *table, positions, places, grams, *found
    )
    return found


@compile_nogil
def _count_repetition(
    hashes: NDArray[np.uint64],
    before: NDArray[np.int64],
    firsts: NDArray[np.int64],
    keys: NDArray[np.uint64],
    stamps: NDArray[np.int64],
    counts: NDArray[np.int32],
    positions: NDArray[np.int64],
    places: NDArray[np.int64],
    grams: NDArray[np.uint64],
    tops: NDArray[np.int64],
    duplicates: NDArray[np.int64],
) -> None:
    generation = 0
    for text in range(len(firsts) - 1):
        first = firsts[text]
        end = firsts[text + 1]
        size = compute_table_size(end - first)
        alive = end - first
        for word in range(first, end):
            positions[word - first] = word
            grams[word - first] = hashes[word]
        for n in range(2, DUPLICATES[-1] + 1):
            generation += 1
            looked_at = 0
            most = 1  # occurrences of the most frequent n-gram
            covered = first  # words before this are counted already, or not in a duplicate
            for index in range(alive):
                word = positions[index]
                if word + n > end:
                    break
                gram = mix_bits(grams[index] * _MULTIPLIER + hashes[word + n - 1])
                place = count_again(keys, stamps, counts, generation, size, gram)
                positions[looked_at] = word
                places[looked_at] = place
                grams[looked_at] = gram
                looked_at += 1
                if counts[place] > 1:
                    most = max(most, counts[place])
                    if n >= DUPLICATES[0]:
                        covered = max(covered, word)
                        column = n - DUPLICATES[0]
                        duplicates[text, column] += before[word + n] - before[covered]
                        covered = word + n
            alive = 0
            longest = 0
            for index in range(looked_at):
                count = counts[places[index]]
                if count == 1:
                    continue
                word = positions[index]
                if count == most:
                    longest = max(longest, before[word + n] - before[word])
                positions[alive] = word
                grams[alive] = grams[index]
                alive += 1
            if n <= TOPS[-1]:
                tops[text, n - TOPS[0]] = most * longest
            if alive == 0:
                break
