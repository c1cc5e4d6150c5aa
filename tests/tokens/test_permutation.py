import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as tries
from hypothesis import strategies as st

from trainrig.tokens.permutation import permute_indices


@tries(deadline=None)
@given(st.integers(1, 3_000), st.text(max_size=5))
def test_a_permutation_takes_each_number_to_another_one(size, key):
    assert sorted(permute_indices(np.arange(size), size, key)) == list(range(size))


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 63, 64, 65, 4_096, 65_537, 104_729])
def test_sizes_at_the_edges_of_the_network_are_permuted_whole(size):
    assert (np.sort(permute_indices(np.arange(size), size, "k")) == np.arange(size)).all()


def test_a_permutation_is_computed_number_by_number():
    whole = permute_indices(np.arange(1_000), 1_000, "k")
    some = np.array([999, 3, 3, 512])
    assert (permute_indices(some, 1_000, "k") == whole[some]).all()


def test_a_permutation_of_very_many_needs_no_memory():
    size = 10**15 + 37
    ends = np.array([0, 1, size - 2, size - 1])
    found = permute_indices(ends, size, "k")
    assert len(set(found.tolist())) == 4 and ((found >= 0) & (found < size)).all()


def test_another_key_gives_another_permutation():
    permutations = {tuple(permute_indices(np.arange(100), 100, f"{key}")) for key in range(50)}
    assert len(permutations) == 50


@pytest.mark.parametrize("size", [2, 3, 7, 50])
def test_every_place_is_as_likely(size):
    """Test chi-squared over (number, position) for 500 keys; its mean is (size - 1)^2."""
    keys = 500
    counts = np.zeros((size, size))
    for key in range(keys):
        counts[np.arange(size), permute_indices(np.arange(size), size, str(key))] += 1
    expected = keys / size
    degrees = (size - 1) ** 2
    chi_squared = ((counts - expected) ** 2 / expected).sum()
    assert chi_squared < degrees + 6 * np.sqrt(2 * degrees)


def test_neighbours_do_not_stay_neighbours():
    """Expect two adjacent pairs by chance, and a mean distance of a third of the size."""
    size = 100_000
    steps = np.diff(permute_indices(np.arange(size), size, "k"))
    assert (np.abs(steps) == 1).sum() < 20
    assert abs(np.abs(steps).mean() / size - 1 / 3) < 0.01


def permute_one_index(number: int, size: int, key: str) -> int:
    """Return the same permutation in Python's integers, which cannot overflow."""
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    digest = hashlib.blake2b(key.encode(), digest_size=64).digest()
    while True:
        left = number >> half
        right = number & (2**half - 1)
        for at in range(0, 64, 8):
            word = right ^ int.from_bytes(digest[at : at + 8], "little")
            word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 % 2**64
            word = (word ^ word >> 27) * 0x94D049BB133111EB % 2**64
            left, right = right, left ^ (word ^ word >> 31) & (2**half - 1)
        number = left << half | right
        if number < size:
            return number


@tries(deadline=None)
@given(st.integers(1, 2**62), st.text(max_size=5), st.data())
def test_permutations_equal_a_reference_for_single_numbers(size, key, data):
    index = data.draw(st.lists(st.integers(0, size - 1), max_size=5))
    expected = [permute_one_index(number, size, key) for number in index]
    assert permute_indices(np.array(index, dtype=np.int64), size, key).tolist() == expected


def test_permutations_are_the_same_as_ever():
    # Recorded values: a change would alter the order of every run's data.
    assert permute_indices(np.arange(10), 10, "0\n0\nweb").tolist() == [
        2,
        8,
        9,
        7,
        3,
        4,
        6,
        1,
        5,
        0,
    ]


# --- mixtures
