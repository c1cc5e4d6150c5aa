"""Attention in one kernel, held to plain products in float32."""

import dataclasses
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

from attention_rows import RINGS, ROWS, Rows

from trainrig.models.kernels.blocked_attention import has_kernel

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU; run by `make gpu`"),
]
LONG = [
    Rows(rows=2, heads=4, kv_heads=4, queries=1024, keys=1024, width=128, mean=300),
    Rows(rows=3, heads=6, queries=333, keys=333, width=40, mean=5),
    Rows(rows=2, heads=4, kv_heads=2, queries=2000, keys=2000, width=256, window=512, cap=30.0),
    Rows(rows=2, heads=8, kv_heads=2, queries=1500, keys=1500, width=64, window=128, sinks=True),
    Rows(heads=4, queries=512, keys=2048, width=128, mean=700),
    Rows(heads=4, kv_heads=4, queries=1000, keys=1000, width=64, slopes=True),
    Rows(rows=2100, heads=32, kv_heads=8, queries=20, keys=20, width=16, window=5),
]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("given", ROWS + LONG)
def test_it_is_what_plain_products_give_and_the_same_bits_again(given, dtype):
    assert has_kernel(dtype, given.width, torch.device("cuda"))
    drawn = given.draw("cuda", dtype)
    first, again, whole = drawn.attend(), drawn.attend(), drawn.attend_plainly(torch.float32)
    for ours, same, exact in zip(first, again, whole, strict=True):
        assert torch.equal(ours, same)
        assert (ours.float() - exact).norm() <= 2e-2 * exact.norm()


@pytest.mark.parametrize("given", RINGS)
def test_a_ring_merges_what_it_gives_of_each_chunk(given):
    drawn = given.draw("cuda", torch.bfloat16)
    first, again = drawn.attend_in_ring(), drawn.attend_in_ring()
    whole = drawn.attend_plainly(torch.float32)
    for ours, same, exact in zip(first, again, whole, strict=True):
        assert torch.equal(ours, same)
        assert (ours.float() - exact).norm() <= 2e-2 * exact.norm()


def test_what_is_in_another_document_changes_nothing():
    drawn = Rows(queries=512, keys=512, width=64).draw("cuda", torch.bfloat16)
    documents = (torch.arange(512, device="cuda")[None] >= 200).long()
    drawn = dataclasses.replace(drawn, documents=documents)
    seen = drawn.attend()[0]
    for each in drawn.parts:
        each[:, :, :200] = 100
    assert torch.equal(drawn.attend()[0][:, :, 200:], seen[:, :, 200:])
