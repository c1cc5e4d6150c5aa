"""Clusters of vectors and duplicates among them, with the same bits on every machine.

The sum of a floating-point product depends on the order of its terms, and libraries choose that
order. Here, vectors are scaled to a fixed length and rounded to integers first. All sums of their
products are then integers that the dtype represents exactly, so every order gives the same bits, at
any number of threads. Clusters are made by spherical k-means: the centroids depend on the set of
vectors and on the initial ones alone, and not on the order in which files are read.

Shapes: N vectors (for duplicates in the keep order), M other vectors, B vectors of a block, K
centroids, C channels.
"""

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.array_types import Bools, Float32s, Float64s, Int64s

# Length of vectors in float32. With C channels, no partial sum of a product exceeds
# (COARSE + √C / 2)², which is below 2^24 up to 36,000 channels. A cosine is off by less than
# √C / COARSE.
COARSE = 4_000
# Length of vectors in float64: no sum exceeds 2^53, and a cosine is off by less than √C / 2^26.
FINE = 2**26

Float = np.float32 | np.float64


def round_coarsely(vectors_NC: NDArray[Float]) -> Float32s:
    """Return vectors [N, C] of length COARSE, rounded to integers, in float32."""
    return _round(vectors_NC, COARSE).astype(np.float32)


def round_finely(vectors_NC: NDArray[Float]) -> Float64s:
    """Return vectors [N, C] of length FINE, rounded to integers, in float64."""
    return _round(vectors_NC, FINE)


def _round(vectors_NC: NDArray[Float], length: int) -> Float64s:
    """Scale vectors to `length` and round them; a vector of zeros stays one."""
    wide_NC = np.ascontiguousarray(vectors_NC, dtype=np.float64)
    lengths_N1 = np.sqrt((wide_NC * wide_NC).sum(axis=1, keepdims=True))
    return np.rint(wide_NC * (length / np.where(lengths_N1 > 0, lengths_N1, 1.0)))


def compute_cosines(one_NC: Float64s, other_MC: Float64s) -> Float64s:
    """Return the cosines [N, M] of vectors that `round_finely` gave.

    Equal vectors have the cosine 1, and a vector of zeros has the cosine 0 with all others.
    """
    squares_N = (one_NC * one_NC).sum(axis=1)
    squares_M = (other_MC * other_MC).sum(axis=1)
    products_NM = one_NC @ other_MC.T
    # The square root of a rounded square is the number itself, so equal vectors give exactly 1.
    lengths_NM = np.sqrt(squares_N[:, None] * squares_M[None, :])
    return np.minimum(products_NM / np.where(lengths_NM > 0, lengths_NM, 1.0), 1.0)


_PRODUCTS = 2**22  # products that are held at a time: 16 MiB


def find_nearest(vectors_NC: Float32s, centroids_KC: Float32s) -> tuple[Int64s, Int64s]:
    """Return the nearest centroid of each vector, and the product with it.

    Both arguments come from `round_coarsely`. Of equally near centroids, the first is chosen.
    """
    nearest_N = np.empty(len(vectors_NC), np.int64)
    products_N = np.empty(len(vectors_NC), np.int64)
    rows = max(1, _PRODUCTS // len(centroids_KC))
    for begin in range(0, len(vectors_NC), rows):
        block = slice(begin, begin + rows)
        products = vectors_NC[block] @ centroids_KC.T
        nearest_N[block] = products.argmax(axis=1)
        products_N[block] = products.max(axis=1)
    return nearest_N, products_N


def train_centroids(vectors_NC: Float32s, clusters: int, iterations: int) -> Float32s:
    """Return the centroids [K, C] of k-means on vectors that `round_coarsely` gave.

    The first `clusters` vectors are the initial centroids. A cluster without vectors keeps its
    centroid. Training ends early when no vector changes its cluster.
    """
    centroids_KC = vectors_NC[:clusters].copy()
    before_N = np.full(len(vectors_NC), -1)
    for _ in range(iterations):
        nearest_N, _ = find_nearest(vectors_NC, centroids_KC)
        if (nearest_N == before_N).all():
            break
        before_N = nearest_N
        sums_KC = _sum_by_cluster(vectors_NC, nearest_N, clusters)
        there_K = sums_KC.any(axis=1)
        centroids_KC[there_K] = round_coarsely(sums_KC[there_K])
    return centroids_KC


def _sum_by_cluster(vectors_NC: Float32s, nearest_N: Int64s, clusters: int) -> Float64s:
    """Return the sum [K, C] of the vectors of each cluster, as integers in float64."""
    sums_KC = np.zeros((clusters, vectors_NC.shape[1]))
    rows = max(1, _PRODUCTS // vectors_NC.shape[1])
    for begin in range(0, len(vectors_NC), rows):
        of_block = nearest_N[begin : begin + rows]
        order = np.argsort(of_block, kind="stable")
        there, starts = np.unique(of_block[order], return_index=True)
        block = vectors_NC[begin : begin + rows][order].astype(np.float64)
        sums_KC[there] += np.add.reduceat(block, starts, axis=0)
    return sums_KC


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
