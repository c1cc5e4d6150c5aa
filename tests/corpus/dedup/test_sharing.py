"""Which band keys are shared, and the entries of those."""

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from trainrig.corpus.dedup.names import parts_of_keys
from trainrig.corpus.dedup.sharing import entries, keys_by_part, shared

# Some that are like in their low bits, or in those above, alone.
any_key = st.integers(0, 2**64 - 1) | st.sampled_from([0, 1, 2**26, 2**26 + 1, 2**63, 2**64 - 1])
tables = st.lists(st.tuples(any_key, any_key, any_key), max_size=20)
parts = st.integers(1, 9)


def table_of(rows):
    return np.array(rows, np.uint64).reshape(-1, 3)


@given(tables, parts)
def test_keys_lie_in_their_ranges_in_the_order_of_documents(rows, parts):
    found, starts = keys_by_part(table_of(rows), parts)
    keys = [key for row in rows for key in row]
    for part in range(parts):
        here = found[starts[part] : starts[part + 1]].tolist()
        assert here == [key for key in keys if (key >> 32) * parts >> 32 == part]
    assert starts[0] == 0 and starts[-1] == len(found) == len(keys)


@given(st.lists(any_key, max_size=60))
def test_all_that_are_shared_are_seen(keys):
    found = shared(np.array(keys, np.uint64))
    counts = Counter(keys)
    assert all(found[nth] for nth, key in enumerate(keys) if counts[key] > 1)


def test_of_those_that_are_alone_few_are_said_to_be_shared():
    dice = np.random.default_rng(5)
    alone = dice.integers(0, 2**64, 200_000, np.uint64)
    twice = dice.integers(0, 2**64, 25_000, np.uint64)
    keys = np.concatenate([alone, twice, twice])
    for many in (keys, keys >> np.uint64(12)):  # whichever bits differ
        found = shared(many)
        assert found[len(alone) :].all()
        assert found[: len(alone)].mean() < 1 / 20


@given(tables, parts, st.randoms(use_true_random=False))
def test_a_document_has_an_entry_for_each_key_that_is_wanted(rows, parts, random):
    keys = table_of(rows)
    count = len(keys)
    ids = np.array([(7 * n, n) for n in range(count)], np.uint64).reshape(-1, 2)
    ranks, refs = np.arange(count, dtype=np.uint64)[::-1] * 3, np.arange(count, dtype=np.uint64)
    wanted = np.array([random.random() < 0.5 for _ in range(keys.size)], bool)
    found, starts = entries(keys, ranks, ids, refs, parts, wanted)

    # A table that names the document of each key, and in which all stand as keys by part do.
    order = np.argsort(parts_of_keys(keys.reshape(-1), parts), kind="stable")
    document = order // 3
    expected = [
        (int(keys.reshape(-1)[at]), int(ranks[d]), int(ids[d, 0]), int(refs[d]))
        for at, d, there in zip(order, document, wanted, strict=True)
        if there
    ]
    assert found.tolist() == expected
    here = np.repeat(np.arange(parts), np.diff(starts))
    assert here.tolist() == parts_of_keys(found["key"], parts).tolist()
