"""The first and last visible key of each query, compared with every query-key pair."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trainrig.models.kernels.kernel_support import find_document_ends, find_reach

CPU = torch.device("cpu")


@settings(deadline=None, max_examples=100)
@given(
    rows=st.integers(1, 3),
    queries=st.tuples(st.integers(0, 9), st.integers(1, 12)),
    keys=st.tuples(st.integers(0, 9), st.integers(1, 12)),
    window=st.none() | st.integers(1, 25) | st.just(2**31 + 5),
    causal=st.booleans(),
    begins=st.none() | st.lists(st.integers(0, 1), min_size=63, max_size=63),
)
def test_a_query_sees_the_keys_between_and_no_others(rows, queries, keys, window, causal, begins):
    """Compare any part of a row with any other, which may be empty."""
    queries, keys = (range(begin, begin + length) for begin, length in (queries, keys))
    seen = 21
    documents = None if begins is None else torch.tensor(begins[: rows * seen]).view(rows, seen)
    if documents is not None:
        documents = documents.cumsum(1)
    reach = find_reach(find_document_ends(documents, seen, CPU), queries, keys, window, causal)
    distance_TN = torch.tensor(queries)[:, None] - torch.tensor(keys)
    sees_BTN = torch.ones(rows, len(queries), len(keys), dtype=torch.bool)
    if causal:
        sees_BTN &= distance_TN >= 0
    if window is not None:
        sees_BTN &= distance_TN.abs() <= (window - 1 if causal else (window - 1) // 2)
    if documents is not None:
        sees_BTN &= documents[:, list(queries), None] == documents[:, None, list(keys)]

    at_N = torch.arange(len(keys))
    at_T = torch.arange(len(queries))
    first_key, last_key, first_query, last_query = (bound[..., None] for bound in reach)
    assert torch.equal(((at_N >= first_key) & (at_N <= last_key)).expand_as(sees_BTN), sees_BTN)
    seen_BNT = (at_T >= first_query) & (at_T <= last_query)
    assert torch.equal(seen_BNT.mT.expand_as(sees_BTN), sees_BTN)
    # A block of a kernel reads from the first key of its first query to the last key of its last.
    for places in reach:
        assert places.dtype == torch.int32
        assert (places.diff(dim=1) >= 0).all()
    assert (reach.first_key_BT >= 0).all()
    assert (reach.first_query_BN >= 0).all()


@pytest.mark.parametrize("documents", [None, torch.tensor([[3, 3, 4], [1, 1, 1]])])
def test_rows_without_documents_share_one_reach(documents):
    reach = find_reach(find_document_ends(documents, 3, CPU), range(3), range(3), None, True)
    assert {len(places) for places in reach} == {1 if documents is None else 2}
