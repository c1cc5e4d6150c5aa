import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainrig.corpus.signatures.shingle_similarity import (
    compute_least_common,
    compute_similarities,
    count_common_shingles,
    gather_shingles,
)

sets = st.lists(st.sets(st.integers(0, 12), min_size=1), min_size=1, max_size=8)


def flatten(sets):
    """Return the concatenated sets, with the start and end of each."""
    values = np.array([value for members in sets for value in sorted(members)], np.uint32)
    values.flags.writeable = False
    ends = np.cumsum([len(members) for members in sets])
    return values, ends - [len(members) for members in sets], ends


@given(sets, st.sampled_from(["jaccard", "containment"]), st.floats(0.01, 1))
def test_no_pair_from_the_floor_up_is_lost_and_each_is_counted_exactly(sets, measure, floor):
    one, other = (list(side) for side in zip(*((a, b) for a in sets for b in sets), strict=True))
    values, starts, ends = flatten(one)
    more, more_starts, more_ends = flatten(other)
    sizes = ends - starts, more_ends - more_starts
    least = compute_least_common(measure, floor, *sizes)
    common = count_common_shingles(values, starts, ends, more, more_starts, more_ends, least)
    found = compute_similarities(measure, common, *sizes)
    for nth, (a, b) in enumerate(zip(one, other, strict=True)):
        whole = min(len(a), len(b)) if measure == "containment" else len(a | b)
        exact = len(a & b) / whole
        if common[nth] >= 0:
            assert common[nth] == len(a & b) and found[nth] == exact
        else:
            assert exact < floor


@pytest.mark.parametrize("top", [2**32, 2**31, 3 * 2**30], ids=["all", "lower half", "lopsided"])
@pytest.mark.parametrize("share", [0.0, 0.5, 0.9, 1.0])
def test_long_documents_are_counted_as_numpy_counts_them(top, share):
    """Count from four ends at once, as far as they are apart, wherever the values are."""
    dice = np.random.default_rng(7)
    one = []
    other = []
    for size in (30, 65, 200, 1_000, 5_000):
        for more in (0, 1, 17, size):
            own, lent, new = (dice.integers(0, top, n) for n in (size, more, size + more))
            kept = dice.random(size) < share
            one.append(set(own.tolist()) | set(lent.tolist()))
            other.append(
                {
                    a if keep else b
                    for a, b, keep in zip(own.tolist(), new.tolist(), kept, strict=False)
                }
            )
    exact = np.array([len(a & b) for a, b in zip(one, other, strict=True)])
    for least in (np.zeros_like(exact), exact):
        assert (
            count_common_shingles(*flatten(one), *flatten(other), least).tolist() == exact.tolist()  # type: ignore[call-arg]
        )
    assert (count_common_shingles(*flatten(one), *flatten(other), exact + 1) == -1).all()  # type: ignore[call-arg]


def test_counting_stops_once_too_few_are_left():
    one = flatten([{1, 2, 3, 4}])
    other = flatten([{5, 6, 7, 4}])
    least = np.array([2])
    assert count_common_shingles(*one, *other, least).tolist() == [-1]  # type: ignore[call-arg]
    assert count_common_shingles(*one, *other, np.array([1])).tolist() == [1]  # type: ignore[call-arg]


@pytest.mark.parametrize(("measure", "expected"), [("jaccard", 0.25), ("containment", 1.0)])
def test_an_excerpt_is_contained_but_not_similar(measure, expected):
    sizes = np.array([2]), np.array([8])
    assert compute_similarities(measure, np.array([2]), *sizes).tolist() == [expected]


def test_some_documents_of_many_are_put_together():
    values, starts, ends = flatten([{1, 2}, {3}, {4, 5, 6}])
    assert gather_shingles(values, starts[[2, 0]], ends[[2, 0]]).tolist() == [4, 5, 6, 1, 2]
