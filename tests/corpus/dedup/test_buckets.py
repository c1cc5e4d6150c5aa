import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from trainrig.corpus.dedup.buckets import ENTRY, FULL_BUCKET, candidates, entries

# Key, rank, ref; a document is its ref, and its rank and tie go by that.
rows = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 30)), max_size=80)


def pairs_of(rows: list[tuple[int, int]], full_bucket: int = FULL_BUCKET) -> list[tuple[int, int]]:
    # Ranks in an order of their own: 7 has no factor in common with 31.
    table = np.array([(key, ref * 7 % 31, ref, ref) for key, ref in rows], ENTRY)
    return candidates(table, full_bucket).tolist()


@given(rows)
def test_small_buckets_give_all_their_pairs(rows):
    rows = list(set(rows))
    expected = {
        (a, b) for (key, a), (other, b) in itertools.product(rows, rows) if key == other and a < b
    }
    assert pairs_of(rows) == sorted(expected)


def test_a_large_bucket_gives_each_the_first_in_the_keep_order_and_the_one_before():
    documents = list(range(200))
    table = np.array([(9, 300 - ref, ref, ref) for ref in documents], ENTRY)
    in_order = documents[::-1]
    expected = {
        tuple(sorted((in_order[before], in_order[nth])))
        for nth in documents
        for before in {*range(min(nth, FULL_BUCKET)), *([nth - 1] if nth else [])}
    }
    assert candidates(table).tolist() == sorted(expected)
    assert len(expected) < FULL_BUCKET * 200 + 200


@given(rows, st.randoms(use_true_random=False), st.sampled_from([1, 2, FULL_BUCKET]))
def test_pairs_do_not_depend_on_the_order_of_entries(rows, random, full_bucket):
    rows = list(set(rows))
    shuffled = list(rows)
    random.shuffle(shuffled)
    assert pairs_of(shuffled, full_bucket) == pairs_of(rows, full_bucket)


def test_a_document_has_an_entry_for_each_band():
    keys = np.arange(6, dtype=np.uint64).reshape(2, 3)
    ids = np.array([[4, 0], [5, 0]], np.uint64)
    found = entries(keys, np.array([8, 9], np.uint64), ids, np.array([1, 2], np.uint64))
    assert found.tolist() == [
        (0, 8, 4, 1),
        (1, 8, 4, 1),
        (2, 8, 4, 1),
        (3, 9, 5, 2),
        (4, 9, 5, 2),
        (5, 9, 5, 2),
    ]
