"""Repetition of n-grams in characters, counted as datatrove counts it.

The top n-gram is the most frequent one (the first, among equally frequent ones), even if it occurs
only once; its length includes the spaces between words. Duplicates are counted from left to right
without overlap: n-grams that start inside a duplicate are skipped. Their lengths include no spaces.
"""

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.compiled import compile_nogil
from trainrig.corpus.signals.n_grams import DUPLICATES, TOPS, Repetition
from trainrig.corpus.signals.text_arrays.hashing import (
    allocate_seen,
    compute_table_size,
    count_again,
    mix_bits,
)

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # 2**64 / golden ratio, rounded to an odd number


def measure_repetition(
    hashes_T: NDArray[np.uint64], lengths_T: NDArray[np.int32], firsts_D1: NDArray[np.int64]
) -> Repetition:
    """Measure the characters in each text's top n-grams and in its duplicate n-grams."""
    texts = len(firsts_D1) - 1
    most = int(np.diff(firsts_D1).max(initial=0))
    before = np.zeros(len(lengths_T) + 1, np.int64)
    np.cumsum(lengths_T, out=before[1:])
    found = Repetition(
        np.zeros((texts, len(TOPS)), np.int64), np.zeros((texts, len(DUPLICATES)), np.int64)
    )
    positions = np.empty(most, np.int64)
    places = np.empty(most, np.int64)
    grams = np.empty(most, np.uint64)
    table = allocate_seen(most)
    _count_repetition(hashes_T, before, firsts_D1, *table, positions, places, grams, *found)
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
        for token in range(first, end):
            positions[token - first] = token
            grams[token - first] = hashes[token]
        for n in range(2, DUPLICATES[-1] + 1):
            generation += 1
            looked_at = 0
            for index in range(alive):
                token = positions[index]
                if token + n > end:
                    break
                gram = mix_bits(grams[index] * _MULTIPLIER + hashes[token + n - 1])
                places[looked_at] = count_again(keys, stamps, counts, generation, size, gram)
                positions[looked_at] = token
                grams[looked_at] = gram
                looked_at += 1
            if n <= TOPS[-1]:
                top = first
                most = 1
                for index in range(looked_at):
                    if counts[places[index]] > most:
                        top = positions[index]
                        most = counts[places[index]]
                if top + n <= end:
                    length = before[top + n] - before[top] + n - 1
                    tops[text, n - TOPS[0]] = most * length
            alive = 0
            for index in range(looked_at):
                if counts[places[index]] > 1:
                    positions[alive] = positions[index]
                    grams[alive] = grams[index]
                    alive += 1
            if n >= DUPLICATES[0]:
                generation += 1
                free = first  # the first token after the last duplicate n-gram
                for index in range(alive):
                    token = positions[index]
                    if token < free:
                        continue
                    place = count_again(keys, stamps, counts, generation, size, grams[index])
                    if counts[place] > 1:
                        length = before[token + n] - before[token]
                        duplicates[text, n - DUPLICATES[0]] += length
                        free = token + n
            if alive == 0 and n >= TOPS[-1]:
                break
