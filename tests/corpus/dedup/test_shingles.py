import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainrig.corpus.dedup.shingles import jaccard, mix, shingle

words = st.lists(st.sampled_from(["a", "b", "c", "d"]), max_size=30)


def plain(split: list[str], n: int) -> set[tuple[str, ...]]:
    length = min(n, len(split))
    return {tuple(split[i : i + length]) for i in range(len(split) - length + 1)}


@given(words, words, st.integers(1, 6))
def test_hashes_are_to_each_other_as_the_shingles_themselves(a, b, n):
    ours = jaccard(shingle(" ".join(a), n), shingle(" ".join(b), n))
    sets = plain(a, n), plain(b, n)
    assert ours == len(sets[0] & sets[1]) / len(sets[0] | sets[1])


@given(words, st.integers(1, 6))
def test_shingles_are_sorted_and_each_there_once(split, n):
    found = shingle(" ".join(split), n)
    assert found.dtype == np.uint64
    assert (np.diff(found.astype(object)) > 0).all()
    assert len(found) == len(plain(split, n))


def test_case_and_signs_do_not_matter_and_the_order_of_words_does():
    assert np.array_equal(shingle("The cat, sat!", 2), shingle("the CAT sat", 2))
    assert not np.array_equal(shingle("cat the", 2), shingle("the cat", 2))


@pytest.mark.parametrize("text", ["", "one", "one two three four"])
def test_a_text_shorter_than_a_shingle_is_one_shingle(text):
    assert len(shingle(text, 5)) == 1


def test_a_short_text_is_like_itself_alone():
    texts = ["", "one", "one two", "two one"]
    found = [shingle(text, 5) for text in texts]
    assert [[jaccard(a, b) for b in found] for a in found] == np.eye(4).tolist()


def test_the_hash_of_a_text_is_the_same_on_every_machine():
    # A change here makes every signature on disk worthless.
    assert shingle("The mill", 5).tolist() == [8015415306354190924]


def test_mixing_is_murmur_hash_3s_finaliser():
    # Its well-known fixed point and the value of fmix64(1).
    assert mix(np.array([0, 1], np.uint64)).tolist() == [0, 0xB456BCFC34C2CB2C]
