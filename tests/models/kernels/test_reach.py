"""Where what is seen begins and ends, held to every pair of a query and a key."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trainrig.models.kernels.reach import find_reach

CPU = torch.device("cpu")


def draw_documents(rows, seen, begins):
    marks = torch.tensor(begins[: rows * seen]).view(rows, seen)
    return marks.cumsum(1)


@settings(deadline=None, max_examples=80)
@given(
    rows=st.integers(1, 3),
    new=st.integers(1, 12),
    past=st.integers(0, 9),
    window=st.none() | st.integers(1, 25),
    causal=st.booleans(),
    begins=st.none() | st.lists(st.integers(0, 1), min_size=63, max_size=63),
)
def test_a_query_sees_the_keys_between_and_no_others(rows, new, past, window, causal, begins):
    seen = past + new
    documents = None if begins is None else draw_documents(rows, seen, begins)
    reach = find_reach(documents, new, seen, window, causal, CPU)
    sees_BTS = torch.ones(rows, new, seen, dtype=torch.bool)
    distance_TS = torch.arange(past, seen)[:, None] - torch.arange(seen)
    if causal:
        sees_BTS &= distance_TS >= 0
    if window is not None:
        sees_BTS &= distance_TS.abs() <= (window - 1 if causal else (window - 1) // 2)
    if documents is not None:
        sees_BTS &= documents[:, past:, None] == documents[:, None, :]

    at_S, at_T = torch.arange(seen), torch.arange(new)
    keys_BTS = (at_S >= reach.first_key_BT[..., None]) & (at_S <= reach.last_key_BT[..., None])
    queries_BST = (at_T >= reach.first_query_BS[..., None]) & (
        at_T <= reach.last_query_BS[..., None]
    )
    assert torch.equal(keys_BTS.expand_as(sees_BTS), sees_BTS)
    assert torch.equal(queries_BST.mT.expand_as(sees_BTS), sees_BTS)
    # A block of a kernel goes from the first of its first to the last of its last.
    for places in reach:
        assert places.dtype == torch.int32
        assert (places.diff(dim=1) >= 0).all()


@pytest.mark.parametrize("documents", [None, torch.tensor([[3, 3, 4], [1, 1, 1]])])
def test_rows_that_are_alike_have_one(documents):
    reach = find_reach(documents, 3, 3, None, True, CPU)
    assert {len(places) for places in reach} == {1 if documents is None else 2}
