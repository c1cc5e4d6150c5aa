"""n-grams of word ids: packed into keys that sort as numbers, counted, and adjusted for each order.

Shapes: M n-grams, n words in each. A key holds three ids of 21 bits, the first in the highest bits;
an n-gram is a pair of 64-bit keys. Words 0, 1 and 2 are `<unk>`, `<s>` and `</s>`.

Counting takes bounded memory for a text of any length: chunks are sorted, counted and written to a
folder. At the end they are merged one key range at a time. The result depends on the text alone,
not on the chunks.

The adjusted count of an n-gram of the highest order, or of one that begins with `<s>`, is its
number of occurrences; for others it is the number of different words before it (Kneser & Ney 1995).
Training runs `Counter`, `build_levels` and then `kneser_ney.estimate`.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from trainrig.corpus.array_types import Bools, Int64s, UInt32s, UInt64s
from trainrig.corpus.compiled import compile_nogil

UNKNOWN = 0
BEGIN = 1
END = 2
SPECIAL = ("<unk>", "<s>", "</s>")
ID_BITS = 21  # bits of an id
IDS_PER_KEY = 3
LONGEST = 2 * IDS_PER_KEY  # words
MOST_WORDS = 2**ID_BITS  # size of a vocabulary

Ids = UInt32s
Keys = UInt64s
Counts = Int64s


class NgramKeys(NamedTuple):
    """Sort keys of n-grams: `high_M` is compared first, `low_M` breaks ties."""

    high_M: Keys
    low_M: Keys


def pack(words_nM: Ids) -> NgramKeys:
    """Pack n-grams into keys that sort by the first word, then the next, and so on."""
    none = np.zeros(words_nM.shape[1], np.uint64)
    padded = [*words_nM, *[none] * (LONGEST - len(words_nM))]
    return NgramKeys(_pack_words(padded[:IDS_PER_KEY]), _pack_words(padded[IDS_PER_KEY:]))


def _pack_words(words: list[Ids]) -> Keys:
    key = words[0].astype(np.uint64)
    for word in words[1:]:
        key = key << np.uint64(ID_BITS) | word.astype(np.uint64)
    return key


def unpack(keys: NgramKeys, order: int) -> Ids:
    """Unpack keys into the words [n, M] of n-grams of `order` words."""
    mask = np.uint64(MOST_WORDS - 1)
    words = np.empty((order, len(keys.high_M)), np.uint32)
    for place in range(order):
        key = keys.high_M if place < IDS_PER_KEY else keys.low_M
        shift = ID_BITS * (IDS_PER_KEY - 1 - place % IDS_PER_KEY)
        words[place] = (key >> np.uint64(shift)) & mask
    return words


def sort_places(keys: NgramKeys) -> Int64s:
    """Return the order that sorts the n-grams."""
    return np.lexsort((keys.low_M, keys.high_M))


def find_contexts(words_nM: Ids, below_nM: Ids) -> Int64s:
    """Return the index in `below_nM` of each n-gram without its last word; both must be sorted.

    `below_nM` must contain every such context.
    """
    contexts = words_nM[:-1]
    new = np.ones(contexts.shape[1], np.bool_)
    new[1:] = (contexts[:, 1:] != contexts[:, :-1]).any(axis=0)
    places = _find_n_grams(np.ascontiguousarray(contexts[:, new]), np.ascontiguousarray(below_nM))
    found: Int64s = places[np.cumsum(new) - 1]
    return found


@compile_nogil
def _find_n_grams(wanted_nM: Ids, there_nM: Ids) -> Int64s:
    order, count = wanted_nM.shape
    found = np.empty(count, np.int64)
    place = 0
    for number in range(count):
        row = 0
        while row < order:
            if wanted_nM[row, number] == there_nM[row, place]:
                row += 1
            else:
                place += 1
                row = 0
        found[number] = place
    return found


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
        merged = [_merge_counts(pieces) for pieces in _cut_key_ranges(runs, self._chunk)]
        high, low, counts = (np.concatenate(parts) for parts in zip(*merged, strict=True))
        return unpack(NgramKeys(high, low), self._order), counts.astype(np.int64)

    def _write(self) -> None:
        grams = np.concatenate(
            [_list_grams(stream, self._order) for stream in self._waiting], axis=1
        )
        keys = pack(grams)
        rows = np.stack([*keys, np.ones(len(keys.high_M), np.uint64)])
        np.save(self._folder / f"{self._written}.npy", _merge_counts([rows]))
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


def _cut_key_ranges(runs: list[Keys], size: int) -> list[list[Keys]]:
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


def _merge_counts(runs: list[Keys]) -> UInt64s:
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


Places = Int64s


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


def _find_firsts(backward_nM: Ids) -> list[Bools]:
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
