import datasketch
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainrig.corpus.dedup.minhash import MinHash, band_keys, sign
from trainrig.corpus.dedup.shingles import jaccard, mix

CURVE = [(0.70, 0.565), (0.75, 0.772), (0.80, 0.924), (0.85, 0.988)]
DEFAULT = MinHash()


def pair_of(similarity: float, size: int, generator: np.random.Generator):
    """Two sets of which `similarity` of the union is common."""
    union = mix(generator.integers(0, 2**63, size, np.uint64))
    common = round(similarity * size)
    rest = (size - common) // 2
    return union[: common + rest], np.concatenate([union[:common], union[common + rest :]])


@pytest.mark.parametrize(("similarity", "probability"), CURVE)
def test_the_curve_is_the_published_one(similarity, probability):
    assert DEFAULT.candidate_probability(similarity) == pytest.approx(probability, abs=5e-4)


@pytest.mark.parametrize(("similarity", "probability"), CURVE)
def test_pairs_become_candidates_as_often_as_the_curve_says(similarity, probability):
    generator = np.random.default_rng(7)
    met = []
    for _ in range(400):
        a, b = pair_of(similarity, 400, generator)
        keys = [band_keys(sign(each, DEFAULT), DEFAULT) for each in (a, b)]
        met.append(bool((keys[0] == keys[1]).any()))
    # Four standard errors of 400 draws, and what rounding 400 shingles adds to the similarity.
    assert np.mean(met) == pytest.approx(probability, abs=4 * 0.5 / 20)


@given(st.sets(st.integers(0, 2**64 - 1), min_size=1, max_size=50), st.integers(0, 2**32 - 1))
@settings(max_examples=30)
def test_a_signature_is_datasketchs_own(values, seed):
    theirs = datasketch.MinHash(num_perm=112, seed=seed, scheme="affine64", hashfunc=int)
    for value in values:
        theirs.update(value)
    ours = sign(np.array(sorted(values), np.uint64), MinHash(seed=seed))
    assert np.array_equal(ours, theirs.hashvalues)


def test_a_set_larger_than_a_block_has_the_least_of_its_blocks():
    shingles = mix(np.arange(10_000, dtype=np.uint64))
    parts = [sign(shingles[:3_000], DEFAULT), sign(shingles[3_000:], DEFAULT)]
    assert np.array_equal(sign(shingles, DEFAULT), np.minimum(*parts))


def test_rows_agree_as_often_as_shingles_are_common():
    a, b = pair_of(0.6, 2_000, np.random.default_rng(3))
    many = MinHash(bands=250, rows=8)
    agree = float(np.mean(sign(a, many) == sign(b, many)))
    exact = jaccard(np.sort(a), np.sort(b))
    assert agree == pytest.approx(exact, abs=4 * (0.6 * 0.4 / 2_000) ** 0.5)


def test_a_band_key_hangs_on_each_of_its_rows_and_on_no_other():
    signature = sign(mix(np.arange(50, dtype=np.uint64)), DEFAULT)
    keys = band_keys(signature, DEFAULT)
    assert keys.shape == (14,)
    for row in range(112):
        other = signature.copy()
        other[row] += np.uint64(1)
        changed = np.flatnonzero(band_keys(other, DEFAULT) != keys)
        assert changed.tolist() == [row // 8]


def test_equal_rows_in_two_bands_give_two_keys():
    keys = band_keys(np.full(112, 5, np.uint64), DEFAULT)
    assert len(set(keys.tolist())) == 14


def test_another_seed_gives_another_signature():
    shingles = mix(np.arange(50, dtype=np.uint64))
    assert not np.array_equal(sign(shingles, MinHash(seed=1)), sign(shingles, MinHash(seed=2)))


def test_the_signature_of_a_text_is_the_same_on_every_machine():
    # A change here makes every signature on disk worthless.
    keys = band_keys(sign(np.arange(3, dtype=np.uint64), DEFAULT), DEFAULT)
    assert keys[:2].tolist() == [3419611117627713187, 4023548701322369366]
