"""How alike two documents really are: counted on their shingles, many pairs at a time.

A pair of shared band keys is a guess. What falls on it unverified has cost whole sources: of
859,092 documents two were left, once, and of the candidates of some sources three in four were no
duplicates.
"""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from trainrig.config import Field, Settings
from trainrig.corpus.compiled import compile_nogil

Measure = Literal["jaccard", "containment"]
"""Common shingles by those of both together, or by those of the smaller document."""

_STRIDE = 8  # steps of a walk between two looks at whether enough are left
_MIDDLE = np.uint32(2**31)  # of the values of shingles, which are hashes


class Verification(Settings):
    """What of two documents is compared, and down to where what was found is kept."""

    # How alike two documents are: "jaccard", or "containment", which also finds excerpts: of a
    # tenth of a document all shingles are common. Band keys agree by Jaccard similarity though, so
    # of unlike lengths fewer pairs are ever compared.
    measure: Measure = "jaccard"
    # Similarity from which on pairs are kept beside the output: above it, thresholds move without
    # new signatures.
    evidence_floor: float = Field(default=0.7, gt=0, le=1)


@compile_nogil
def count_common_shingles(
    one: NDArray[np.uint32],
    one_starts: NDArray[np.int64],
    one_ends: NDArray[np.int64],
    other: NDArray[np.uint32],
    other_starts: NDArray[np.int64],
    other_ends: NDArray[np.int64],
    least: NDArray[np.int64],
) -> NDArray[np.int64]:
    """[pairs] how many shingles two documents share; -1 once it is sure that fewer than `least`.

    Args:
        one: shingles, those of each document sorted; read-only, as mapped files are.
        one_starts, one_ends: [pairs] where those of a pair's first document lie.
        other, other_starts, other_ends: the same of the second.
        least: [pairs]
    """
    found = np.empty(len(least), np.int64)
    for pair in range(len(least)):
        i, i_last = one_starts[pair], one_ends[pair]
        j, j_last = other_starts[pair], other_ends[pair]
        # Four walks, from either end of the lower half of all values and of the upper: a step waits
        # for the one before it in its own walk alone.
        k = i_end = _find_first_not_below(one, i, i_last, _MIDDLE)
        m = j_end = _find_first_not_below(other, j, j_last, _MIDDLE)
        k_end, m_end, common = i_last, j_last, 0
        while min(i_end - i, j_end - j, k_end - k, m_end - m) > 2 * _STRIDE and (
            common + min(i_end - i, j_end - j) + min(k_end - k, m_end - m) >= least[pair]
        ):
            # No branch for the processor to guess at: which shingle is lower is anyone's guess.
            for _ in range(_STRIDE):
                a, b = one[i], other[j]
                common, i, j = common + (a == b), i + (a <= b), j + (b <= a)
                a, b = one[i_end - 1], other[j_end - 1]
                common, i_end, j_end = common + (a == b), i_end - (a >= b), j_end - (b >= a)
                a, b = one[k], other[m]
                common, k, m = common + (a == b), k + (a <= b), m + (b <= a)
                a, b = one[k_end - 1], other[m_end - 1]
                common, k_end, m_end = common + (a == b), k_end - (a >= b), m_end - (b >= a)
        above = min(k_end - k, m_end - m)
        common += _count_common(one[i:i_end], other[j:j_end], least[pair] - common - above)
        common += _count_common(one[k:k_end], other[m:m_end], least[pair] - common)
        found[pair] = common if common >= least[pair] else -1
    return found


@compile_nogil
def _count_common(one: NDArray[np.uint32], other: NDArray[np.uint32], least: int) -> int:
    """How many values two sorted arrays share; less, once it is sure that fewer than `least`."""
    i, j, common = 0, 0, 0
    while i < len(one) and j < len(other) and common + min(len(one) - i, len(other) - j) >= least:
        for _ in range(min(_STRIDE, len(one) - i, len(other) - j)):
            a, b = one[i], other[j]
            common, i, j = common + (a == b), i + (a <= b), j + (b <= a)
    return common


@compile_nogil
def _find_first_not_below(
    values: NDArray[np.uint32], start: int, end: int, least: np.uint32
) -> int:
    """Where in a sorted partition of `values` those from `least` up begin."""
    while start < end:
        middle = (start + end) // 2
        if values[middle] < least:
            start = middle + 1
        else:
            end = middle
    return start


def compute_least_common(
    measure: Measure, floor: float, one: NDArray[np.int64], other: NDArray[np.int64]
) -> NDArray[np.int64]:
    """[pairs] as many common shingles as documents of these numbers have at similarity `floor`.

    One less, so that no rounding loses a pair: `compute_similarities` decides.
    """
    whole = np.minimum(one, other) if measure == "containment" else (one + other) / (1 + floor)
    least = np.ceil(floor * whole)
    return np.maximum(least.astype(np.int64) - 1, 0)


def compute_similarities(
    measure: Measure,
    common: NDArray[np.int64],
    one: NDArray[np.int64],
    other: NDArray[np.int64],
) -> NDArray[np.float64]:
    """[pairs] from 0 to 1; `one` and `other` are the numbers of shingles of the two documents."""
    whole = np.minimum(one, other) if measure == "containment" else one + other - common
    return np.maximum(common, 0) / whole


def gather_shingles(
    shingles: NDArray[np.uint32], starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> NDArray[np.uint32]:
    """The shingles of some documents out of those of many, one document after the other."""
    found = np.empty(np.sum(ends - starts), np.uint32)
    write_together(shingles, starts, ends, found)
    return found


@compile_nogil
def write_together(
    shingles: NDArray[np.uint32],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    found: NDArray[np.uint32],
) -> None:
    """What `gather_shingles` gives, to the beginning of `found`."""
    at = 0
    for document in range(len(starts)):
        length = ends[document] - starts[document]
        found[at : at + length] = shingles[starts[document] : ends[document]]
        at += length
