"""Anchors: positions chosen by a text's content, so that equal windows have equal anchors.

A *window* is `min_bytes` long. Its anchor is the run of half as many bytes (a *gram*) with the
lowest hash in it, the last of equals: a minimizer (Schleimer et al. 2003, "Winnowing"; Roberts et
al. 2004). Neighbouring windows mostly share an anchor, so with windows of 200 bytes about one byte
in fifty starts an anchor. If the key of an anchor occurs once in the corpus, none of its windows
can repeat another. The remaining windows, to be compared byte by byte, are a small part of most
corpora. A hash collision adds to them, but no repeat is ever missed.

Array suffixes: D is the number of documents, A of anchors.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.compiled import compile_nogil
from trainrig.corpus.dedup.substrings.flat import Bytes

# Odd base of the rolling hash (Karp & Rabin 1987), modulo 2**64, and splitmix64's multipliers.
_BASE = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_32 = np.uint64(32)
_29 = np.uint64(29)


@dataclass(frozen=True)
class Anchors:
    """The anchors of all windows, in order, each with the run of windows that share it."""

    keys_A: NDArray[np.uint64]
    counts_A: NDArray[np.int64]  # consecutive occurrences, for a text that repeats one period
    documents_A: NDArray[np.int64]
    begins_A: NDArray[np.int64]  # start of the first window, in bytes of the text
    ends_A: NDArray[np.int64]  # end of the last window, in bytes of the text


def find_anchors(texts: Bytes, window: int) -> Anchors:
    """Return the anchors of `texts`; a document shorter than a window has none."""
    gram = window // 2
    # Twice the expected number first, then the exact number if that is too small.
    room = 1024 + 4 * len(texts.data) // (window - gram + 1)
    while True:
        columns = [np.empty(room, kind) for kind in (np.uint64, *[np.int64] * 4)]
        count = _fill_anchors(texts.data, texts.starts_D1, window, gram, *columns)
        if count <= room:
            return Anchors(*(column[:count] for column in columns))
        room = count


@compile_nogil
def _fill_anchors(
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    window: int,
    gram: int,
    keys: NDArray[np.uint64],
    counts: NDArray[np.int64],
    documents: NDArray[np.int64],
    begins: NDArray[np.int64],
    ends: NDArray[np.int64],
) -> int:
    """Fill the last five arrays up to their size, and return the total number of anchors."""
    grams = window - gram + 1  # grams per window
    ring = 1
    while ring < grams:
        ring *= 2
    recent = np.empty(ring, np.uint64)
    mask = ring - 1
    leaving = _BASE  # weight of a byte when it leaves the gram
    for _ in range(gram - 1):
        leaving *= _BASE
    count = 0
    for document in range(len(starts) - 1):
        start = starts[document]
        length = starts[document + 1] - starts[document]
        if length < window:
            continue
        rolling = np.uint64(0)
        for place in range(start, start + gram):
            rolling = rolling * _BASE + np.uint64(data[place])
        least = np.uint64(0xFFFFFFFFFFFFFFFF)
        at = -1
        anchor = -1
        for place in range(length - gram + 1):  # place of the gram
            if place:
                weight = np.uint64(data[start + place + gram - 1])
                weight -= np.uint64(data[start + place - 1]) * leaving
                rolling = rolling * _BASE + weight
            value = rolling * _FIRST
            value ^= value >> _32
            recent[place & mask] = value
            if value <= least:
                least = value
                at = place
            elif at <= place - grams:
                at = place - grams + 1
                least = recent[at & mask]
                for other in range(at + 1, place + 1):
                    if recent[other & mask] <= least:
                        least = recent[other & mask]
                        at = other
            begin = place - grams + 1  # start of the window
            if begin < 0:
                continue
            if at != anchor:
                key = least * _SECOND
                key = max(key ^ (key >> _29), np.uint64(1))
                # The same content repeated at once is a period; one entry stands for all of it.
                if anchor >= 0 and count <= len(keys) and keys[count - 1] == key:
                    counts[count - 1] += 1
                else:
                    if count < len(keys):
                        keys[count] = key
                        counts[count] = 1
                        documents[count] = document
                        begins[count] = begin
                    count += 1
                anchor = at
            if count <= len(keys):
                ends[count - 1] = begin + window
    return count
