"""The block masks that flex_attention gets, compared with torch's own."""

import pytest
import torch
from gpu.attention_rows import ROWS, Rows
from torch.nn.attention.flex_attention import create_block_mask

from trainrig.models.kernels import flex_rows
from trainrig.models.kernels.prepared_rows import prepare_rows

CPU = torch.device("cpu")
LONG = Rows(rows=2, queries=300, keys=700, mean=150, window=260)
MASKS = [
    LONG,
    Rows(queries=1, keys=1),
    Rows(queries=256, keys=256),
    Rows(queries=513, keys=513, window=129),
    Rows(rows=3, queries=400, keys=400, mean=90, causal=False),
    Rows(queries=640, keys=640, causal=False, window=301),
    Rows(queries=130, keys=500),
]


@pytest.mark.slow
@pytest.mark.parametrize("given", ROWS)
def test_flex_attention_equals_plain_products(given, kernels):
    torch._dynamo.reset()
    drawn = given.draw("cpu", torch.float32)
    whole = drawn.attend_plainly(torch.float64)
    for found, exact in zip(drawn.attend("flex"), whole, strict=True):
        assert (found - exact).norm() <= 2e-6 * exact.norm()


@pytest.mark.slow
def test_caps_sinks_and_slopes_equal_plain_products(kernels):
    given = Rows(sinks=True, slopes=True, cap=1.5, window=50, mean=30, queries=60, keys=100)
    drawn = given.draw("cpu", torch.float32)
    for found, exact in zip(drawn.attend("flex"), drawn.attend_plainly(torch.float64), strict=True):
        assert (found - exact).norm() <= 2e-6 * exact.norm()


def find_read_blocks(counts, indices):
    """Return [B, P, Q]: whether a block of queries reads a block of keys."""
    found = torch.zeros(indices.shape, dtype=torch.bool)
    for place in torch.cartesian_prod(*(torch.arange(size) for size in counts.shape)).tolist():
        first = indices[tuple(place)][: counts[tuple(place)]]
        assert first.diff().gt(0).all()  # ascending, as this is the order of summation
        found[(*place, first.long())] = True
    return found[:, 0]


@pytest.mark.parametrize("given", MASKS)
def test_blocks_are_those_that_torch_finds_in_the_whole_mask(given):
    documents = given.draw("cpu", torch.float32).documents
    sizes = given.queries, given.keys
    ours = prepare_rows("flex", documents, sizes, CPU, given.window, given.causal).blocks
    rows = 1 if documents is None else given.rows
    theirs = create_block_mask(ours.mask_mod, rows, None, *sizes, device="cpu")
    some = find_read_blocks(ours.kv_num_blocks, ours.kv_indices)
    whole = find_read_blocks(ours.full_kv_num_blocks, ours.full_kv_indices)
    their_whole = find_read_blocks(theirs.full_kv_num_blocks, theirs.full_kv_indices)
    their_some = find_read_blocks(theirs.kv_num_blocks, theirs.kv_indices)
    # Between the first and the last visible key of a block, no block is left out.
    assert not (their_some & ~some & ~whole).any()
    assert not (their_whole & ~some & ~whole).any()
    assert not (whole & ~their_whole).any()
    assert not (some & whole).any()
    if given.mean is None:
        assert torch.equal(some | whole, their_some | their_whole)
        assert whole.sum() == their_whole.sum()
    # The backward pass iterates over blocks of keys.
    assert ours.q_num_blocks.sum() == some.sum()
    assert ours.full_q_num_blocks.sum() == whole.sum()


def test_flex_attention_is_compiled_by_shape_for_training_and_dynamically_otherwise(monkeypatch):
    asked = []
    monkeypatch.setattr(torch, "compile", lambda _, **settings: asked.append(settings))
    for trains in (True, False):
        flex_rows._compile.__wrapped__(trains)
    assert asked == [{"fullgraph": True, "dynamic": False}, {"fullgraph": True, "dynamic": True}]
