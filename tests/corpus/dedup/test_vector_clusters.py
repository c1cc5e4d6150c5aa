"""K-means against a plain loop, at any order of the vectors."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from trainrig.corpus.dedup import exact_vectors
from trainrig.corpus.dedup.exact_vectors import find_nearest, round_coarsely, train_centroids


def make_vectors(seed, rows=40, channels=6):
    return round_coarsely(np.random.default_rng(seed).normal(size=(rows, channels)))


def train_by_loop(vectors, clusters, iterations):
    centroids = [vector.astype(np.int64) for vector in vectors[:clusters]]
    for _ in range(iterations):
        members = [[] for _ in range(clusters)]
        for vector in vectors.astype(np.int64):
            products = [int((vector * centroid).sum()) for centroid in centroids]
            members[products.index(max(products))].append(vector)
        sums = [np.sum(of_cluster, axis=0) if of_cluster else None for of_cluster in members]
        centroids = [
            old if new is None or not new.any() else round_coarsely(new[None, :])[0].astype(int)
            for old, new in zip(centroids, sums, strict=True)
        ]
    return np.array(centroids)


@given(st.integers(0, 2**32 - 1), st.integers(1, 9), st.integers(1, 6))
def test_centroids_are_those_of_a_loop(seed, clusters, iterations):
    vectors = make_vectors(seed)
    found = train_centroids(vectors, clusters, iterations)
    assert (found == train_by_loop(vectors, clusters, iterations)).all()


@given(st.integers(0, 2**32 - 1), st.permutations(range(35)), st.integers(1, 2**10))
def test_order_and_blocks_change_no_bit(seed, order, products):
    """Only the first five vectors, which are the initial centroids, keep their places."""
    vectors = make_vectors(seed)
    expected = train_centroids(vectors, 5, 10)
    moved = np.concatenate([vectors[:5], vectors[5:][order]])
    before = exact_vectors._PRODUCTS
    exact_vectors._PRODUCTS = products
    try:
        assert (train_centroids(moved, 5, 10) == expected).all()
    finally:
        exact_vectors._PRODUCTS = before


def test_the_first_of_equally_near_centroids_is_chosen():
    centroids = round_coarsely(np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]))
    nearest, products = find_nearest(round_coarsely(np.array([[2.0, 0.0]])), centroids)
    assert nearest.tolist() == [0]
    assert products.tolist() == [4_000 * 4_000]


def test_a_cluster_without_vectors_keeps_its_centroid():
    vectors = round_coarsely(np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.6, 0.8]]))
    assert (train_centroids(vectors, 2, 5)[1] == vectors[1]).all()
