import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainrig.corpus.dedup.candidates import (
    CANDIDATE,
    ENTRY,
    FEW_CANDIDATES,
    MOST_CANDIDATES,
    iterate_candidates,
    iterate_candidates_of_one_key,
    select_nearest,
    select_nearest_of_all,
)

# Rows are of a key and a document reference, from which the rank and the id follow.
rows = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 30)), max_size=80)
most_met = st.sampled_from([1, 2, 5, MOST_CANDIDATES])
batches = st.sampled_from([1, 3, 10, 1000])


def compute_position(ref: int) -> int:
    """Return the document's position in the keep order; 7 and 93 have no common factor."""
    return ref * 7 % 93


def make_table(rows: list[tuple[int, int]]) -> np.ndarray:
    return np.array([(key, compute_position(ref), ref << 32, ref) for key, ref in rows], ENTRY)


def find_pairs(
    rows: list[tuple[int, int]], most: int = MOST_CANDIDATES, batch: int = 1000, **more
) -> list[tuple[int, int]]:
    found = select_nearest_of_all(
        iterate_candidates(make_table(rows), most=most, batch=batch, **more), most
    )
    return [(a, b) for a, b, _ in found.tolist()]


def list_candidates(bucket: list[int], nth: int, most: int) -> list[int]:
    """List the candidates of the nth document of a bucket in order, by the definition."""
    if nth > most:
        return bucket[: min(most, FEW_CANDIDATES)]
    return [*bucket[: min(nth, 1)], *bucket[max(nth - 1, 1) : nth], *bucket[1 : max(nth - 1, 1)]]


def find_pairs_plainly(rows: list[tuple[int, int]], most: int) -> set[tuple[int, int]]:
    """Return the pairs by the definition, without any optimisation."""
    best: dict[tuple[int, int], tuple[int, int]] = {}
    for key in {key for key, _ in rows}:
        bucket = sorted((ref for of, ref in rows if of == key), key=compute_position)
        for nth, a in enumerate(bucket):
            for turn, b in enumerate(list_candidates(bucket, nth, most)):
                best[a, b] = min(best.get((a, b), (99, 0)), (turn, b))
    found = set()
    for a in {a for a, _ in best}:
        met = sorted((turn, b) for (of, b), turn in best.items() if of == a)
        found |= {(a, b) for _, b in met[:most]}
    return found


@pytest.mark.slow
@given(rows)
def test_small_buckets_give_all_pairs_latest_in_the_keep_order_first(rows):
    rows = list(set(rows))
    expected = {
        (a, b)
        for (key, a), (other, b) in itertools.product(rows, rows)
        if key == other and compute_position(b) < compute_position(a)
    }
    assert sorted(find_pairs(rows)) == sorted(expected)


@given(rows, most_met, batches)
def test_each_document_is_paired_with_its_first_candidates(rows, most, batch):
    rows = list(set(rows))
    found = find_pairs(rows, most, batch)
    assert sorted(found) == sorted(find_pairs_plainly(rows, most))
    assert max((sum(a == one for a, _ in found) for one in range(31)), default=0) <= most


@given(rows, st.randoms(use_true_random=False), most_met)
def test_pairs_do_not_depend_on_the_order_of_entries(rows, random, most):
    rows = list(set(rows))
    shuffled = list(rows)
    random.shuffle(shuffled)
    assert find_pairs(shuffled, most) == find_pairs(rows, most)


@given(rows, most_met)
def test_pairs_do_not_depend_on_how_the_keys_are_divided(rows, most):
    rows = list(set(rows))
    by_key = [
        batch
        for key in range(6)
        for batch in iterate_candidates(
            make_table([row for row in rows if row[0] == key]), most=most
        )
    ]
    together = select_nearest_of_all(by_key, most)
    assert [(a, b) for a, b, _ in together.tolist()] == find_pairs(rows, most)


def test_the_lowest_turn_of_a_pair_counts():
    # The order by position is 14, 1, 15, 2. In bucket 1, the last document meets 1 in its second
    # turn; in bucket 2, in its first. Among first turns, 1 and 14 have the lowest ids.
    rows = [(1, 14), (1, 1), (1, 2), (2, 1), (2, 2), (3, 15), (3, 2)]
    assert [compute_position(ref) for ref in (14, 1, 15, 2)] == [5, 7, 12, 14]
    assert [b for a, b in find_pairs(rows, most=2) if a == 2] == [1, 14]


def test_a_large_bucket_gives_each_few_from_the_front():
    documents = list(range(200))
    table = np.array([(9, 300 - ref, ref, ref) for ref in documents], ENTRY)
    in_order = documents[::-1]
    expected = {
        (in_order[nth], in_order[before])
        for nth in documents
        for before in range(nth if nth <= MOST_CANDIDATES else FEW_CANDIDATES)
    }
    (found,) = iterate_candidates(table)
    assert sorted((a, b) for a, b, _ in found.tolist()) == sorted(expected)
    assert len(expected) < MOST_CANDIDATES * MOST_CANDIDATES // 2 + FEW_CANDIDATES * 200


@pytest.mark.parametrize("order", ["as they are", "backwards", "by half"])
def test_a_large_bucket_is_sorted_by_rank_then_id_then_ref(order):
    # The order by reference or by id alone would differ.
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
    expected = {
        (in_order[nth], in_order[before])
        for nth in range(1, len(documents))
        for before in range(min(nth, 2))
    }
    (found,) = iterate_candidates(np.array(given[order], ENTRY), most=2)
    assert sorted((a, b) for a, b, _ in found.tolist()) == sorted(expected)


@given(rows, st.integers(0, 31))
def test_a_pair_with_a_decided_document_belongs_to_the_other_and_two_decided_ones_are_not_paired(
    rows, earlier
):
    rows = list(set(rows))
    expected = {
        (b, a) if a >= earlier else (a, b)
        for a, b in find_pairs_plainly(rows, MOST_CANDIDATES)
        if min(a, b) < earlier
    }
    assert sorted(find_pairs(rows, earlier=earlier)) == sorted(expected)


def test_a_new_document_is_paired_with_earlier_ones_then_the_nearest_decided_ones():
    # Two new documents come before a hundred decided ones; each has a different rank.
    table = np.array([(5, rank, rank << 32, rank) for rank in range(102)], ENTRY)
    (found,) = iterate_candidates(table, earlier=2, most=10)
    met = {one: [b for a, b, _ in found.tolist() if a == one] for one in range(102)}
    assert met[0] == list(range(2, 12))
    assert met[1] == [0, *range(2, 11)]
    assert not any(met[one] for one in range(2, 102))


@given(st.sets(st.integers(0, 90), min_size=1), st.integers(0, 91), st.integers(1, 20), most_met)
def test_one_key_of_too_many_entries_gives_the_same_pairs_in_pieces(refs, earlier, size, most):
    table = make_table([(3, ref) for ref in refs])
    np.random.default_rng(len(refs)).shuffle(table)
    pieces = [table[first : first + size] for first in range(0, len(table), size)]
    found = select_nearest_of_all(
        iterate_candidates_of_one_key(lambda: iter(pieces), earlier, most), most
    )
    assert (
        found.tolist()
        == select_nearest_of_all(iterate_candidates(table, earlier, most), most).tolist()
    )


def test_a_pair_of_many_keys_occurs_once():
    keys = np.random.default_rng(3).integers(0, 2**64, 500, np.uint64).tolist()
    table = np.array([(key, one, one, one) for one in range(3) for key in keys], ENTRY)
    (found,) = iterate_candidates(table)
    assert [(a, b) for a, b, _ in found.tolist()] == [(1, 0), (2, 0), (2, 1)]


def test_no_entries_give_no_batch():
    assert list(iterate_candidates(np.empty(0, ENTRY))) == []
    assert len(select_nearest_of_all([])) == len(select_nearest(np.empty(0, CANDIDATE))) == 0
