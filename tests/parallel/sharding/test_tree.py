import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainrig.parallel.sharding.sum_tree import TreeSum, join_spans

# Large and small numbers of both signs: their float sums depend on the order.
FLOATS = st.floats(-1e6, 1e6, width=32)


def find_largest_subtrees(begin, end, leaves):
    """Return the fewest subtrees with exactly the leaves `begin` … `end` - 1, left to right."""
    return join_spans([(leaf, leaf + 1) for leaf in range(begin, end)], leaves)


class Text(str):
    """Value whose sum is the text of its brackets."""

    def add_(self, other):
        return Text(f"({self}+{other})")


def add_leaves(leaves, order=None):
    tree = TreeSum(len(leaves))
    for leaf in order or range(len(leaves)):
        tree.add((leaf, leaf + 1), leaves[leaf])
    return tree.whole()


@pytest.mark.parametrize(
    ("leaves", "brackets"),
    [
        ("a", "a"),
        ("ab", "(a+b)"),
        ("abc", "((a+b)+c)"),
        ("abcde", "(((a+b)+(c+d))+e)"),
        ("abcdef", "(((a+b)+(c+d))+(e+f))"),
        ("abcdefgh", "(((a+b)+(c+d))+((e+f)+(g+h)))"),
    ],
)
def test_the_brackets_of_small_trees_by_hand(leaves, brackets):
    assert add_leaves([Text(leaf) for leaf in leaves]) == brackets
    assert add_leaves([Text(leaf) for leaf in leaves], range(len(leaves))[::-1]) == brackets


@st.composite
def draw_assigned_leaves(draw):
    """Draw leaves, their uneven assignment to neighbours, some idle, and the order of arrival."""
    values = draw(st.lists(FLOATS, min_size=1, max_size=24))
    cuts = sorted(draw(st.lists(st.integers(0, len(values)), max_size=5)))
    bounds = [0, *cuts, len(values)]
    pieces = [
        span
        for begin, end in itertools.pairwise(bounds)
        for span in find_largest_subtrees(begin, end, len(values))
    ]
    order = draw(st.permutations(range(len(values))))
    return values, bounds, draw(st.permutations(pieces)), order


@given(draw_assigned_leaves())
def test_any_deal_in_any_order_gives_the_bits_of_one_worker(case):
    values, bounds, pieces, order = case

    def leaf(number):
        return torch.tensor(values[number], dtype=torch.float32)

    alone = add_leaves([leaf(number) for number in range(len(values))])
    sums = {}
    for begin, end in itertools.pairwise(bounds):
        worker = TreeSum(len(values))
        for number in (position for position in order if begin <= position < end):
            worker.add((number, number + 1), leaf(number))
        sums |= dict(worker.list_sums())
    assert sorted(sums) == sorted(pieces)
    together = TreeSum(len(values))
    for span in pieces:
        together.add(span, sums[span])
    assert together.whole().numpy().tobytes() == alone.numpy().tobytes()


@given(st.integers(1, 40), st.data())
def test_the_largest_subtrees_are_the_leaves_once_and_no_two_are_one(leaves, data):
    begin = data.draw(st.integers(0, leaves))
    end = data.draw(st.integers(begin, leaves))
    spans = find_largest_subtrees(begin, end, leaves)
    assert [leaf for span in spans for leaf in range(*span)] == list(range(begin, end))
    assert len(spans) <= 2 * max(1, (end - begin).bit_length())


@pytest.mark.parametrize("workers", [1, 2, 4, 8])
def test_an_even_deal_of_eight_is_one_piece_each(workers):
    share = 8 // workers
    for worker in range(workers):
        spans = find_largest_subtrees(worker * share, (worker + 1) * share, 8)
        assert spans == [(worker * share, (worker + 1) * share)]


def test_a_leaf_that_comes_twice_and_one_that_is_missing_are_noticed():
    tree = TreeSum(3)
    tree.add((0, 1), torch.ones(1))
    with pytest.raises(AssertionError, match="came twice"):
        tree.add((0, 1), torch.ones(1))
    with pytest.raises(AssertionError, match=r"of \(0, 3\)"):
        tree.whole()


def test_the_sum_is_a_sum():
    values = np.random.default_rng(0).normal(size=(13, 5))
    leaves = [torch.from_numpy(row.copy()) for row in values]
    np.testing.assert_allclose(add_leaves(leaves).numpy(), values.sum(axis=0), rtol=1e-12)
