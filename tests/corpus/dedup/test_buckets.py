import itertools

import numpy as np
import pytest
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


@pytest.mark.parametrize("order", ["as they are", "backwards", "by half"])
def test_a_large_bucket_is_sorted_by_rank_then_id_then_ref(order):
    # By ref alone they would stand in another order, and by id too.
    documents = [
        (7, rank, 9 - rank + 20 * tie, 1000 - 100 * rank - 10 * tie + ref)
        for rank in range(4)
        for tie in range(5)
        for ref in range(6)
    ]
    given = {
        "as they are": documents,
        "backwards": documents[::-1],
        "by half": documents[::2] + documents[1::2],
    }
    in_order = [ref for _, _, _, ref in documents]
    # With one to meet, each meets the very first, and the one before it.
    expected = {
        tuple(sorted((in_order[before], in_order[nth])))
        for nth in range(1, len(documents))
        for before in (0, nth - 1)
    }
    assert candidates(np.array(given[order], ENTRY), 1).tolist() == sorted(expected)


def test_a_pair_of_many_keys_is_there_once():
    keys = np.random.default_rng(3).integers(0, 2**64, (1, 500), np.uint64)
    ids = np.arange(6, dtype=np.uint64).reshape(3, 2)
    places = np.arange(3, dtype=np.uint64)
    table, _ = entries(np.repeat(keys, 3, axis=0), places, ids, places, 1)
    assert candidates(table).tolist() == [(0, 1), (0, 2), (1, 2)]


def test_a_document_has_an_entry_for_each_band():
    keys = np.arange(6, dtype=np.uint64).reshape(2, 3)
    ids = np.array([[4, 0], [5, 0]], np.uint64)
    ranks, refs = np.array([8, 9], np.uint64), np.array([1, 2], np.uint64)
    found, starts = entries(keys, ranks, ids, refs, 1)
    assert found.tolist() == [
        (0, 8, 4, 1),
        (1, 8, 4, 1),
        (2, 8, 4, 1),
        (3, 9, 5, 2),
        (4, 9, 5, 2),
        (5, 9, 5, 2),
    ]
    assert starts.tolist() == [0, 6]


@given(st.lists(st.integers(0, 2**64 - 1), max_size=30), st.integers(1, 8))
def test_each_entry_lies_in_the_part_of_its_key(keys, parts):
    table = np.array(keys, np.uint64).reshape(-1, 1)
    places = np.arange(len(keys), dtype=np.uint64)
    found, starts = entries(table, places, np.stack([places, places], axis=1), places, parts)
    assert starts[0] == 0 and starts[-1] == len(found)
    assert found[np.argsort(found["ref"])]["key"].tolist() == keys
    for part in range(parts):
        here = found[starts[part] : starts[part + 1]]
        assert all((key >> 32) * parts >> 32 == part for key in here["key"].tolist())
        assert (np.diff(here["ref"].astype(np.int64)) > 0).all()
