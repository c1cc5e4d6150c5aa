"""Which band keys are shared, and the entries of the shared keys."""

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from trainrig.corpus.dedup.candidate_passes import (
    KEY,
    Searched,
    build_entries,
    group_keys_by_part,
    mark_shared,
)
from trainrig.corpus.dedup.document_refs import assign_parts
from trainrig.corpus.dedup.sorted_runs import PIECE, RunPart, write_grouped

low_bits = st.integers(0, 2**32 - 1) | st.sampled_from([0, 1, 2, 2**16, 2**31, 2**32 - 1])
any_key = st.integers(0, 2**64 - 1) | st.sampled_from([0, 1, 2**26, 2**26 + 1, 2**63, 2**64 - 1])
tables = st.lists(st.tuples(any_key, any_key, any_key), max_size=20)
parts = st.integers(1, 9)
randoms = st.randoms(use_true_random=False)


def make_split_indexes(rows, cut, random):
    """Return the rows as split indexes 3 and 5, with some documents wanted, and the wanted keys."""
    wanted = np.array([random.random() < 0.7 for _ in rows], bool)
    table = np.array(rows, np.uint64).reshape(-1, 3)
    pieces = slice(0, cut), slice(cut, None)
    found = [Searched(s, table[p], wanted[p]) for s, p in zip((3, 5), pieces, strict=True)]
    return found, table[wanted].reshape(-1).tolist()


@given(tables, st.integers(0, 20), parts, randoms)
def test_keys_are_in_their_ranges_in_the_order_of_documents(rows, cut, parts, random):
    split_indexes, keys = make_split_indexes(rows, cut, random)
    found, starts = group_keys_by_part(split_indexes, parts)
    for part in range(parts):
        here = found[starts[part] : starts[part + 1]].tolist()
        assert here == [key % 2**32 for key in keys if (key >> 32) * parts >> 32 == part]
    assert starts[0] == 0 and starts[-1] == len(found) == len(keys)


def write_part(folder, *runs):
    """Write runs of keys and return the part that reads them."""
    for nth, keys in enumerate(runs):
        write_grouped(str(folder / f"{nth}"), np.array(keys, KEY), np.array([0, len(keys)]))
    return RunPart.of([str(folder / f"{nth}") for nth in range(len(runs))], 0, KEY)


@given(st.lists(st.lists(low_bits, max_size=20), max_size=4), st.sampled_from([0, 3, 1000]))
def test_all_that_are_shared_are_seen(tmp_path_factory, runs, distinct):
    keys = [key for run in runs for key in run]
    found = np.concatenate(
        [
            np.empty(0, bool),
            *mark_shared(write_part(tmp_path_factory.mktemp("runs"), *runs), distinct),
        ]
    )
    counts = Counter(keys)
    assert len(found) == len(keys)
    assert all(found[nth] for nth, key in enumerate(keys) if counts[key] > 1)


def test_few_unshared_keys_are_marked_as_shared(tmp_path):
    dice = np.random.default_rng(5)
    alone = np.unique(dice.integers(0, 2**32, 2 * PIECE, KEY))
    alone, twice = alone[PIECE // 4 :], alone[: PIECE // 4]
    runs = [np.concatenate([alone, twice]), twice]
    found = np.concatenate([*mark_shared(write_part(tmp_path, *runs), len(alone) + len(twice))])
    assert found[len(alone) :].all()
    assert 0 < found[: len(alone)].mean() < 1 / 15


@given(tables, st.integers(0, 20), parts, randoms)
def test_a_document_has_an_entry_for_each_key_that_is_shared(rows, cut, parts, random):
    split_indexes, _ = make_split_indexes(rows, cut, random)
    keys, starts = group_keys_by_part(split_indexes, parts)
    is_shared = np.array([random.random() < 0.5 for _ in keys], bool)
    order = {
        split.split_index: (
            np.array([random.randrange(9) for _ in split.keys], np.uint64),
            np.array([(random.randrange(9), 1) for _ in split.keys], np.uint64).reshape(-1, 2),
        )
        for split in split_indexes
    }
    found, first = build_entries(split_indexes, order.__getitem__, is_shared, np.diff(starts))

    # All possible entries, in the order of the keys.
    every = [
        (
            key,
            int(order[split.split_index][0][n]),
            int(order[split.split_index][1][n, 0]),
            split.split_index << 32 | n,
        )
        for split in split_indexes
        for n in range(len(split.keys))
        if split.wanted[n]
        for key in split.keys[n].tolist()
    ]
    every.sort(key=lambda entry: (entry[0] >> 32) * parts >> 32)
    assert found.tolist() == [e for e, there in zip(every, is_shared, strict=True) if there]
    here = np.repeat(np.arange(parts), np.diff(first))
    assert here.tolist() == assign_parts(found["key"], parts).tolist()
