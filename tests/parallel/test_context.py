import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trainrig.parallel.axes.context_parts import cut, find_chunks, join, take_part

# Uneven documents of 16 or of 48 tokens: they end inside chunks, fill several, or fill a row.
SHORT = [[3, 1, 12], [16]]
LONG = [[5, 20, 1, 1, 21], [48], [47, 1]]
KINDS = {
    "plain": {},
    "window": {"attention": {"window": {"size": 7}}},
    "capped": {"attention": {"logit_cap": 2.0, "query_scale": 0.5}},
    "sinks": {"attention": {"sinks": True}},
    "alibi": {"position_embedding": {"kind": "Alibi"}},
}


@settings(deadline=None, max_examples=60)
@given(degree=st.integers(1, 9), size=st.integers(1, 7), before=st.integers(0, 2))
def test_the_parts_of_all_ranks_are_the_row_each_place_once(degree, size, before):
    row = torch.arange(2 * degree * size).expand(*[2] * before, -1)
    parts = [take_part(row, rank, degree, before) for rank in range(degree)]
    assert {part.shape[-1] for part in parts} == {2 * size}
    assert torch.equal(join(parts, before), row)
    assert torch.equal(join(cut(row, degree, before), before), row)
    places = torch.cat([part.reshape(-1, 2 * size)[0] for part in parts])
    assert sorted(places.tolist()) == list(range(2 * degree * size))


@given(degree=st.integers(1, 64))
def test_the_chunks_of_every_rank_see_as_many_chunks(degree):
    seen = [sum(chunk + 1 for chunk in find_chunks(rank, degree)) for rank in range(degree)]
    assert set(seen) == {2 * degree + 1}


@pytest.mark.slow
@pytest.mark.parametrize("keys", ["gather", "ring"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("world", "documents"), [(2, LONG), (4, SHORT), (4, LONG)])
def test_parts_see_and_gradient_as_whole_rows_do(world, documents, kind, keys, ranks):
    for errors, _ in ranks(world, "attended", config=KINDS[kind], documents=documents, keys=keys):
        assert max(errors) <= 1e-5


@pytest.mark.parametrize("keys", ["gather", "ring"])
def test_bfloat16_is_merged_and_added_up_in_float32(keys, ranks):
    for errors, _ in ranks(2, "attended", config={}, documents=LONG, keys=keys, dtype="bfloat16"):
        assert 1e-5 < max(errors) <= 0.06  # gradients are up to about 6; rounding is to 8 bits


@pytest.mark.parametrize("world", [2, 4])
def test_received_bytes_equal_the_formulas(world, ranks):
    """docs/evidence/parallelism.md has the formulas; positions of 8 bytes are sent once a pass."""
    rows = len(LONG)
    length = sum(LONG[0])
    keys = 2 * rows * 2 * length * 8 * 4 * (world - 1) // world  # K and V: 2 heads, 8 channels
    places = rows * length * 8 * (world - 1) // world
    arguments = {"config": {}, "documents": LONG}
    for _, sent in ranks(world, "attended", keys="gather", **arguments):
        assert sent == {"_allgather_base_": keys + places, "alltoall_base_": keys}
    for _, sent in ranks(world, "attended", keys="ring", **arguments):
        assert sent == {"_allgather_base_": places, "recv_": 3 * keys}
