import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from trainrig.corpus.dedup.pairs import FULL_BUCKET, candidate_pairs, fall, keep_order

entries = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 30)), max_size=80)
similarities = st.dictionaries(
    st.tuples(st.integers(0, 12), st.integers(0, 12)).filter(lambda pair: pair[0] < pair[1]),
    st.sampled_from([0.8, 0.85, 0.9, 1.0]),
)


def pairs_of(entries: list[tuple[int, int]]) -> list[tuple[int, int]]:
    keys = np.array([key for key, _ in entries], np.uint64)
    documents = np.array([document for _, document in entries], np.int64)
    return [tuple(pair) for pair in candidate_pairs(keys, documents).tolist()]


def fallen(verified: dict[tuple[int, int], float]) -> dict[int, tuple[int, float]]:
    pairs = np.array(list(verified), np.int64).reshape(-1, 2)
    found = fall(pairs, np.array(list(verified.values()), np.float64))
    values = zip(found.partners.tolist(), found.similarities.tolist(), strict=True)
    return dict(zip(found.documents.tolist(), values, strict=True))


@given(entries)
def test_small_buckets_give_all_their_pairs(entries):
    expected = {
        (a, b)
        for (key, a), (other, b) in itertools.product(entries, entries)
        if key == other and a < b
    }
    assert pairs_of(entries) == sorted(expected)


def test_a_large_bucket_gives_each_document_the_first_64_in_the_keep_order():
    found = pairs_of([(9, document) for document in reversed(range(200))])
    expected = [(a, b) for b in range(200) for a in range(min(b, FULL_BUCKET))]
    assert FULL_BUCKET == 64
    assert found == sorted(expected)


@given(entries, st.randoms(use_true_random=False))
def test_pairs_do_not_depend_on_the_order_of_entries(entries, random):
    shuffled = list(entries)
    random.shuffle(shuffled)
    assert pairs_of(shuffled) == pairs_of(entries)


def test_the_longest_text_comes_first_and_the_lowest_id_of_equals():
    assert keep_order([5, 9, 5, 9], ["d", "c", "b", "a"]) == [3, 1, 2, 0]


def test_the_ends_of_a_chain_are_both_kept():
    assert fallen({(0, 1): 0.9, (1, 2): 0.9}) == {1: (0, 0.9)}


def test_a_document_falls_to_the_kept_one_it_is_most_like():
    verified = {(0, 3): 0.8, (1, 3): 0.95, (2, 3): 0.99, (1, 2): 0.9}
    # 2 falls to 1, so it cannot be 3's partner, alike as they are.
    assert fallen(verified) == {2: (1, 0.9), 3: (1, 0.95)}


def test_nothing_falls_without_pairs():
    assert fallen({}) == {}


@given(similarities)
def test_the_decision_is_the_plain_greedy_one(verified):
    expected: dict[int, tuple[int, float]] = {}
    for document in range(13):
        kept = [
            (-verified[before, document], before)
            for before in range(document)
            if before not in expected and (before, document) in verified
        ]
        if kept:
            similarity, partner = min(kept)
            expected[document] = (partner, -similarity)
    assert fallen(verified) == expected


@given(similarities, st.randoms(use_true_random=False))
def test_the_decision_does_not_depend_on_the_order_of_pairs(verified, random):
    shuffled = [
        ((a, b) if random.random() < 0.5 else (b, a), similarity)
        for (a, b), similarity in verified.items()
    ]
    random.shuffle(shuffled)
    assert fallen(dict(shuffled)) == fallen(verified)


@given(similarities)
def test_every_fallen_document_has_a_kept_partner_of_its_own(verified):
    found = fallen(verified)
    for document, (partner, similarity) in found.items():
        assert partner not in found
        assert verified[partner, document] == similarity
    kept = set(range(13)) - set(found)
    assert not any((a, b) in verified for a in kept for b in kept)
