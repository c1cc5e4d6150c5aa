"""Exact cosines against fractions, in any order of the channels."""

from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from trainrig.corpus.dedup.exact_vectors import (
    COARSE,
    FINE,
    compute_cosines,
    round_coarsely,
    round_finely,
)

VECTORS = arrays(np.float32, (3, 5), elements=st.floats(-8, 8, width=16))


def multiply_exactly(one, other):
    return sum(Fraction(float(a)) * Fraction(float(b)) for a, b in zip(one, other, strict=True))


@given(VECTORS)
def test_products_are_those_of_fractions(vectors):
    for rounded in (round_coarsely(vectors), round_finely(vectors)):
        products = rounded @ rounded.T
        for row in range(3):
            for column in range(3):
                assert products[row, column] == multiply_exactly(rounded[row], rounded[column])


@given(VECTORS, st.permutations(range(5)))
def test_the_order_of_channels_changes_no_bit(vectors, order):
    fine = round_finely(vectors)
    expected = compute_cosines(fine, fine)
    assert (compute_cosines(fine[:, order], fine[:, order]) == expected).all()
    assert (expected == expected.T).all()


def test_no_sum_leaves_the_integers_of_its_dtype():
    """The longest vectors after rounding have channels that all round up."""
    for channels in (64, 4_096, 36_000):
        assert (COARSE + channels**0.5 / 2) ** 2 < 2**24
        assert (FINE + channels**0.5 / 2) ** 2 < 2**53
        wide = np.random.default_rng(channels).normal(size=(2, channels))
        coarse = round_coarsely(wide)
        assert coarse.dtype == np.float32
        assert (coarse[0] @ coarse[1]) == multiply_exactly(coarse[0], coarse[1])
        fine = round_finely(wide)
        assert (fine[0] @ fine[1]) == multiply_exactly(fine[0], fine[1])


def test_cosines_are_close_to_those_of_float64():
    vectors = np.random.default_rng(1).normal(size=(50, 300)).astype(np.float32)
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=1)
    expected = (vectors.astype(np.float64) @ vectors.T.astype(np.float64)) / np.outer(
        lengths, lengths
    )
    fine = round_finely(vectors * 7)
    np.testing.assert_allclose(compute_cosines(fine, fine), expected, atol=1e-6)
    coarse = round_coarsely(vectors) / COARSE
    np.testing.assert_allclose(coarse @ coarse.T, expected, atol=300**0.5 / COARSE)


def test_equal_vectors_have_cosine_one_and_zeros_have_none():
    vectors = np.random.default_rng(2).normal(size=(200, 33)).astype(np.float32)
    fine = round_finely(vectors)
    assert (np.diag(compute_cosines(fine, fine)) == 1).all()
    zero = round_finely(np.zeros((1, 33)))
    assert (compute_cosines(zero, np.concatenate([fine, zero])) == 0).all()
