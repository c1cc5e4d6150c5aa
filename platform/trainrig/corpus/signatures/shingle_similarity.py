"""Similarity of two documents, computed exactly on their shingles, many pairs at a time.

A pair with a shared band key is only a guess. Dropping unverified candidates has destroyed whole
sources: once two of 859,092 documents were left, and in some sources three of four candidates were
not duplicates.
"""

from typing import Literal

import numpy as np

from trainrig.config import Field, Settings
from trainrig.corpus.array_types import Float64s, Int64s, UInt32s
from trainrig.corpus.compiled import compile_nogil

Measure = Literal["jaccard", "containment"]
"""Share of common shingles: of the union, or of the smaller document."""

_STRIDE = 8  # steps between two checks whether enough shingles can still be common
_MIDDLE = np.uint32(2**31)  # middle of the range of shingles, which are hashes


class Verification(Settings):
    """Comparison of candidate pairs, and the similarity from which on they are stored."""

    # How the similarity of two documents is measured. "jaccard": common shingles over all shingles.
    # "containment": common shingles over the smaller document's shingles, so excerpts are found
    # too. Band keys find candidates by Jaccard similarity, so fewer pairs of unequal lengths are
    # compared.
    measure: Measure = "jaccard"
    # Similarity from which on pairs are stored with the output. Thresholds above this floor can be
    # changed without new signatures.
    evidence_floor: float = Field(default=0.7, gt=0, le=1)


@compile_nogil
def count_common_shingles(
    one: UInt32s,
    one_starts: Int64s,
    one_ends: Int64s,
    other: UInt32s,
    other_starts: Int64s,
    other_ends: Int64s,
    least: Int64s,
) -> Int64s:
    """Count the shingles that the two documents of each pair share.

    Counting stops with -1 once fewer than `least` are certain.

    Args:
        one: shingles of the first documents, sorted within each one; read-only like mapped files.
        one_starts: [pairs] start of the first document's shingles.
        one_ends: [pairs] end of the first document's shingles.
        other: shingles of the second documents.
        other_starts: [pairs] start of the second document's shingles.
        other_ends: [pairs] end of the second document's shingles.
        least: [pairs] least number of common shingles of interest.
    """
    found = np.empty(len(least), np.int64)
    for pair in range(len(least)):
        i = one_starts[pair]
        i_last = one_ends[pair]
        j = other_starts[pair]
        j_last = other_ends[pair]
        # Four independent merges, from both ends of the lower and the upper half of all values: the
        # processor overlaps them, since each step only depends on the step before in its own merge.
        k = i_end = _find_first_not_below(one, i, i_last, _MIDDLE)
        m = j_end = _find_first_not_below(other, j, j_last, _MIDDLE)
        k_end = i_last
        m_end = j_last
        common = 0
        while min(i_end - i, j_end - j, k_end - k, m_end - m) > 2 * _STRIDE and (
            common + min(i_end - i, j_end - j) + min(k_end - k, m_end - m) >= least[pair]
        ):
            # No branch here: which shingle is lower is random, so the processor would often guess
            # wrong.
            for _ in range(_STRIDE):
                a = one[i]
                b = other[j]
                common = common + (a == b)
                i = i + (a <= b)
                j = j + (b <= a)
                a = one[i_end - 1]
                b = other[j_end - 1]
                common = common + (a == b)
                i_end = i_end - (a >= b)
                j_end = j_end - (b >= a)
                a = one[k]
                b = other[m]
                common = common + (a == b)
                k = k + (a <= b)
                m = m + (b <= a)
                a = one[k_end - 1]
                b = other[m_end - 1]
                common = common + (a == b)
                k_end = k_end - (a >= b)
                m_end = m_end - (b >= a)
        above = min(k_end - k, m_end - m)
        common += _count_common(one[i:i_end], other[j:j_end], least[pair] - common - above)
        common += _count_common(one[k:k_end], other[m:m_end], least[pair] - common)
        found[pair] = common if common >= least[pair] else -1
    return found


@compile_nogil
def _count_common(one: UInt32s, other: UInt32s, least: int) -> int:
    """Count the common values of two sorted arrays; stop once fewer than `least` are certain."""
    i = 0
    j = 0
    common = 0
    while i < len(one) and j < len(other) and common + min(len(one) - i, len(other) - j) >= least:
        for _ in range(min(_STRIDE, len(one) - i, len(other) - j)):
            a = one[i]
            b = other[j]
            common = common + (a == b)
            i = i + (a <= b)
            j = j + (b <= a)
    return common


@compile_nogil
def _find_first_not_below(values: UInt32s, start: int, end: int, least: np.uint32) -> int:
    """Return the index of the first value in a sorted slice that is at least `least`."""
    while start < end:
        middle = (start + end) // 2
        if values[middle] < least:
            start = middle + 1
        else:
            end = middle
    return start


def compute_least_common(measure: Measure, floor: float, one: Int64s, other: Int64s) -> Int64s:
    """Return the least number of common shingles of each pair with a similarity of `floor`.

    `one` and `other` are the documents' numbers of shingles. The result is one less, so that
    rounding loses no pair; `compute_similarities` decides.
    """
    whole = np.minimum(one, other) if measure == "containment" else (one + other) / (1 + floor)
    least = np.ceil(floor * whole)
    return np.maximum(least.astype(np.int64) - 1, 0)


def compute_similarities(measure: Measure, common: Int64s, one: Int64s, other: Int64s) -> Float64s:
    """Return the similarity of each pair, from 0 to 1.

    `one` and `other` are the numbers of shingles of the two documents.
    """
    whole = np.minimum(one, other) if measure == "containment" else one + other - common
    return np.maximum(common, 0) / whole


def gather_shingles(shingles: UInt32s, starts: Int64s, ends: Int64s) -> UInt32s:
    """Return the shingles of some documents, concatenated."""
    found = np.empty(np.sum(ends - starts), np.uint32)
    write_together(shingles, starts, ends, found)
    return found


@compile_nogil
def write_together(shingles: UInt32s, starts: Int64s, ends: Int64s, found: UInt32s) -> None:
    """Write the result of `gather_shingles` to the beginning of `found`."""
    at = 0
    for document in range(len(starts)):
        length = ends[document] - starts[document]
        found[at : at + length] = shingles[starts[document] : ends[document]]
        at += length
