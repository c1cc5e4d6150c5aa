"""Counts the n-grams of a text of any length in bounded memory.

Chunks are sorted, counted and written to a folder. At the end they are merged one key range at a
time. The result depends on the text alone, not on the chunks.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.models.kneser_ney.ngrams import (
    BEGIN,
    Counts,
    Ids,
    Keys,
    NgramKeys,
    pack,
    sort_places,
    unpack,
)

CHUNK = 4_000_000  # n-grams sorted at a time: about 0.4 GB
SAMPLED = 1_000  # keys sampled of each chunk, to choose the ranges


class Counter:
    """Counter of n-grams of `order` words, in suffix order: by last word, then the one before, etc.

    Each sentence is padded with `<s>`, so that its first word ends a full n-gram.
    """

    def __init__(self, order: int, folder: Path, chunk: int = CHUNK) -> None:
        self._order = order
        self._folder = folder
        self._chunk = chunk
        self._waiting: list[Ids] = []
        self._words = 0
        self._written = 0

    def add(self, stream: Ids) -> None:
        """Count the n-grams of whole sentences: `<s> word … </s> <s> …`."""
        self._waiting.append(stream)
        self._words += len(stream)
        if self._words >= self._chunk:
            self._write()

    def sum_counts(self) -> tuple[Ids, Counts]:
        """Return all n-grams [n, M], last word first and sorted, and the count of each [M]."""
        if self._words:
            self._write()
        runs = [
            np.load(self._folder / f"{number}.npy", mmap_mode="r")
            for number in range(self._written)
        ]
        if not runs:
            return np.empty((self._order, 0), np.uint32), np.empty(0, np.int64)
        merged = [_merge(pieces) for pieces in _cut_ranges(runs, self._chunk)]
        high, low, counts = (np.concatenate(parts) for parts in zip(*merged, strict=True))
        return unpack(NgramKeys(high, low), self._order), counts.astype(np.int64)

    def _write(self) -> None:
        grams = np.concatenate(
            [_list_grams(stream, self._order) for stream in self._waiting], axis=1
        )
        keys = pack(grams)
        rows = np.stack([*keys, np.ones(len(keys.high_M), np.uint64)])
        np.save(self._folder / f"{self._written}.npy", _merge([rows]))
        self._waiting = []
        self._words = 0
        self._written += 1


def _list_grams(stream: Ids, order: int) -> Ids:
    """Return the n-grams [n, M] that end in each word except `<s>`, last word first."""
    grams = np.empty((order, len(stream)), np.uint32)
    grams[0] = stream
    for back in range(1, order):
        before = grams[back - 1] == BEGIN
        grams[back, back:] = stream[:-back]
        grams[back, :back] = BEGIN
        grams[back][before] = BEGIN
    return grams[:, stream != BEGIN]


def _cut_ranges(runs: list[Keys], size: int) -> list[list[Keys]]:
    """Split the runs into ranges of high keys, each of about `size` rows in total."""
    rows = sum(run.shape[1] for run in runs)
    sample = np.sort(np.concatenate([run[0, :: max(1, run.shape[1] // SAMPLED)] for run in runs]))
    count = -(-rows // size)
    cuts = np.unique(sample[len(sample) * np.arange(1, count) // count])
    places = [np.searchsorted(run[0], cuts) for run in runs]
    ends = [[0, *place, run.shape[1]] for place, run in zip(places, runs, strict=True)]
    return [
        [run[:, end[number] : end[number + 1]] for run, end in zip(runs, ends, strict=True)]
        for number in range(len(cuts) + 1)
    ]


def _merge(runs: list[Keys]) -> NDArray[np.uint64]:
    """Merge rows of high key, low key and count [3, M], sorted, summing counts of equal keys."""
    rows = np.concatenate(runs, axis=1)
    rows = rows[:, sort_places(NgramKeys(rows[0], rows[1]))]
    if not rows.shape[1]:
        return rows
    new = np.ones(rows.shape[1], np.bool_)
    new[1:] = (rows[:2, 1:] != rows[:2, :-1]).any(axis=0)
    first = np.flatnonzero(new)
    counts = np.add.reduceat(rows[2], first)
    return np.stack([rows[0, first], rows[1, first], counts])
