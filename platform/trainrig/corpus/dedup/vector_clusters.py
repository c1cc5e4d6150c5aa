"""Clusters of vectors by spherical k-means, which do not depend on the order of the vectors.

All products and sums are exact (`exact_cosines`), so the centroids depend on the set of vectors and
on the initial ones alone: not on threads, devices, or the order in which files are read.

Shapes: N vectors, K centroids, C channels.
"""

import numpy as np

from trainrig.corpus.array_types import Float32s, Float64s, Int64s
from trainrig.corpus.dedup.exact_cosines import round_coarsely

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
