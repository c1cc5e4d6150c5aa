"""Duplicates among the vectors of one cluster: those that resemble a kept one before them.

Shapes: N vectors in the keep order, B vectors of a block, C channels.
"""

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.array_types import Bools, Float64s, Int64s
from trainrig.corpus.dedup.exact_cosines import Float, compute_cosines, round_finely

_BLOCK = 512  # vectors that are decided together
_COLUMNS = 8_192  # kept vectors that a block is compared with at a time: 32 MiB of cosines


def find_duplicates(vectors_NC: NDArray[Float], threshold: float) -> tuple[Int64s, Float64s]:
    """Return the kept vector that each vector duplicates, or -1, and the cosine with it, or NaN.

    Vectors are decided in their order. One falls if its cosine with a *kept* earlier vector is at
    least `threshold`. It then duplicates the kept earlier vector of the highest cosine, or the
    first of several. So a chain A~B~C without A~C keeps A and C.
    """
    fine_NC = round_finely(vectors_NC)
    kept_NC = np.empty_like(fine_NC)
    kept_places = np.empty(len(fine_NC), np.int64)
    kept = 0
    partners_N = np.full(len(fine_NC), -1, np.int64)
    cosines_N = np.full(len(fine_NC), np.nan)
    for begin in range(0, len(fine_NC), _BLOCK):
        block_BC = fine_NC[begin : begin + _BLOCK]
        best_B, cosine_B = _find_best(block_BC, kept_NC[:kept])
        partner_B = np.where(best_B >= 0, kept_places[best_B], -1)
        stays_B = _decide_block(begin, block_BC, partner_B, cosine_B, threshold)
        block = slice(begin, begin + len(block_BC))
        partners_N[block] = np.where(stays_B, -1, partner_B)
        cosines_N[block] = np.where(stays_B, np.nan, cosine_B)
        fresh = np.flatnonzero(stays_B)
        kept_NC[kept : kept + len(fresh)] = block_BC[fresh]
        kept_places[kept : kept + len(fresh)] = begin + fresh
        kept += len(fresh)
    return partners_N, cosines_N


def _find_best(block_BC: Float64s, kept_NC: Float64s) -> tuple[Int64s, Float64s]:
    """Return the most similar of `kept_NC` for each vector, or -1 if there is none, and cosines."""
    best_B = np.full(len(block_BC), -1)
    cosine_B = np.full(len(block_BC), -np.inf)
    for begin in range(0, len(kept_NC), _COLUMNS):
        cosines = compute_cosines(block_BC, kept_NC[begin : begin + _COLUMNS])
        most = cosines.max(axis=1)
        better = most > cosine_B
        best_B[better] = begin + cosines.argmax(axis=1)[better]
        cosine_B[better] = most[better]
    return best_B, cosine_B


def _decide_block(
    begin: int, block_BC: Float64s, partner_B: Int64s, cosine_B: Float64s, threshold: float
) -> Bools:
    """Return which vectors of a block stay; update the partners and cosines with the block's own.

    `partner_B` and `cosine_B` name the most similar kept vector before the block, which begins with
    vector `begin`.
    """
    inside_BB = compute_cosines(block_BC, block_BC)
    stays_B = cosine_B < threshold
    # Only a vector that resembles an earlier one of its block needs the loop.
    resembles_B = (np.tril(inside_BB, -1) >= threshold).any(axis=1)
    for number in np.flatnonzero(resembles_B):
        own = np.where(stays_B[:number], inside_BB[number, :number], -np.inf)
        best = int(own.argmax())
        if own[best] > cosine_B[number]:
            cosine_B[number] = own[best]
            partner_B[number] = begin + best
        stays_B[number] = cosine_B[number] < threshold
    return stays_B
