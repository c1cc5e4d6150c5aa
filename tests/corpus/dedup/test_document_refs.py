import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from trainrig.corpus.dedup.document_refs import (
    assign_parts,
    find_positions,
    find_splits,
    format_ids,
    group_equal_keys,
    make_refs,
    parse_ids,
)

ids = st.lists(st.integers(0, 2**128 - 1).map("{:032x}".format))
keys = st.lists(st.sampled_from([0, 1, 5, 2**63, 2**64 - 1]), max_size=30)


@given(ids)
def test_ids_come_back_and_sort_as_their_words_do(ids):
    words = parse_ids(ids)
    assert format_ids(words) == ids
    assert sorted(map(tuple, words.tolist())) == [tuple(w) for w in parse_ids(sorted(ids)).tolist()]


@given(st.integers(0, 2**31), st.lists(st.integers(0, 2**32 - 1)))
def test_a_reference_is_a_split_index_and_a_position(split_index, places):
    found = make_refs(split_index, np.array(places, np.int64))
    assert find_positions(found).tolist() == places
    assert set(find_splits(found).tolist()) <= {split_index}


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1), st.integers(1, 10**6))
def test_parts_are_ranges_of_keys(keys, parts):
    found = assign_parts(np.array(sorted(keys), np.uint64), parts)
    assert (np.diff(found) >= 0).all() and found.min() >= 0 and found.max() < parts
    ends = assign_parts(np.array([0, 2**64 - 1], np.uint64), parts)
    assert ends.tolist() == [0, parts - 1]


@given(keys)
def test_entries_of_equal_keys_share_a_bucket_and_single_ones_are_left_out(keys):
    entries, buckets = group_equal_keys(np.array(keys, np.uint64))
    assert sorted(entries.tolist()) == [n for n, key in enumerate(keys) if keys.count(key) > 1]
    for entry, bucket in zip(entries.tolist(), buckets.tolist(), strict=True):
        alike = {keys[e] for e, b in zip(entries, buckets, strict=True) if b == bucket}
        assert alike == {keys[entry]}
    assert (np.diff(buckets) >= 0).all()
