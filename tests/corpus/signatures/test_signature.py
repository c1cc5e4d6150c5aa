import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as tries
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.text_signatures import jaccard

from trainrig.corpus.signatures.minhash import MinHash
from trainrig.corpus.signatures.signatures import (
    build_permutations,
    compute_band_keys,
    compute_signatures,
)

DEFAULT = MinHash()
sets = st.sets(st.integers(0, 2**32 - 1), min_size=1, max_size=50)


def sign(shingles: NDArray[np.uint32], settings: MinHash = DEFAULT) -> NDArray[np.uint32]:
    return compute_signatures(shingles, np.array([len(shingles)]), settings)[0]


def make_pair(similarity: float, size: int, generator: np.random.Generator):
    """Return two sets that share `similarity` of their union."""
    union = generator.permutation(np.unique(generator.integers(0, 2**32, size, np.uint32)))
    common = round(similarity * len(union))
    rest = (len(union) - common) // 2
    return (
        np.sort(union[: common + rest]),
        np.sort(np.concatenate([union[:common], union[common + rest :]])),
    )


@given(st.lists(sets, max_size=5), st.integers(0, 2**32 - 1), st.integers(1, 70))
@tries(max_examples=50)
def test_a_signature_has_the_least_value_of_each_permutation(sets, seed, rows):
    settings = MinHash(bands=1, rows=rows, seed=seed)
    a, b = build_permutations(rows, seed)
    shingles = np.array([value for members in sets for value in sorted(members)], np.uint32)
    found = compute_signatures(
        shingles, np.cumsum([len(members) for members in sets], dtype=np.int64), settings
    )
    assert found.tolist() == [
        [min((int(a[row]) * x + int(b[row])) % 2**32 for x in members) for row in range(rows)]
        for members in sets
    ]


def test_permutations_are_one_to_one_and_differ():
    a, b = build_permutations(1000, 1)
    assert (a & 1).all()
    assert len(set(a.tolist())) == len(a) >= 1000
    assert abs(b.mean() / 2**32 - 0.5) < 0.05
    others = build_permutations(1000, 2)
    assert not np.isin(others[0], a).any()
    assert np.array_equal(build_permutations(10, 1)[0][:10], a[:10])


@pytest.mark.parametrize("similarity", [0.70, 0.80, 0.85])
def test_pairs_become_candidates_at_the_rate_of_the_curve(similarity):
    generator = np.random.default_rng(7)
    met = []
    for _ in range(400):
        a, b = make_pair(similarity, 400, generator)
        keys = [compute_band_keys(sign(members)[None], DEFAULT)[0] for members in (a, b)]
        met.append(bool((keys[0] == keys[1]).any()))
    # The tolerance is four standard errors of 400 draws, and the rounding of 400 shingles.
    expected = DEFAULT.compute_candidate_probability(similarity)
    error = (expected * (1 - expected) / 400) ** 0.5
    assert np.mean(met) == pytest.approx(expected, abs=4 * error + 0.01)


@pytest.mark.parametrize("size", [3, 200, 200_000])
def test_rows_agree_as_often_as_shingles_are_common(size):
    many = MinHash(bands=500, rows=8, permutations=4000)
    a, b = make_pair(0.6, size, np.random.default_rng(3))
    agree = float(np.mean(sign(a, many) == sign(b, many)))
    assert agree == pytest.approx(jaccard(a, b), abs=4 * (0.6 * 0.4 / 4_000) ** 0.5)


def test_a_band_key_depends_on_its_rows_alone():
    signature = sign(np.arange(50, dtype=np.uint32))
    keys = compute_band_keys(signature[None], DEFAULT)
    assert keys.shape == (1, 18)
    for row in range(126):
        other = signature.copy()
        other[row] += np.uint32(1)
        changed = np.flatnonzero(compute_band_keys(other[None], DEFAULT)[0] != keys[0])
        assert changed.tolist() == [row // 7]


def test_equal_rows_in_two_bands_give_two_keys():
    keys = compute_band_keys(np.full((1, 126), 5, np.uint32), DEFAULT)
    assert len(set(keys[0].tolist())) == 18


def test_no_texts_have_no_signatures():
    none = compute_signatures(np.empty(0, np.uint32), np.empty(0, np.int64), DEFAULT)
    assert none.shape == (0, 126)
    assert compute_band_keys(none, DEFAULT).shape == (0, 18)


def test_the_signature_of_a_text_is_the_same_on_every_machine():
    # A change of these values invalidates every signature on disk.
    keys = compute_band_keys(sign(np.arange(3, dtype=np.uint32))[None], DEFAULT)
    assert keys[0, :2].tolist() == [13138374902979858922, 13777027632079473621]
