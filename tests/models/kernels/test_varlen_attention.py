"""The documents and windows that FlashAttention-2 gets, by a stand-in that computes plainly."""

import pytest
import torch
from gpu.attention_rows import ROWS, Rows
from torch import library

from trainrig.models.kernels.varlen_attention import OPERATOR, find_varlen_rows
from trainrig.sync_free_reads import remember_copy

PLAIN = [given for given in ROWS if not given.changes_logits]
WIDE = [
    Rows(window=200, mean=40, rows=2),  # a window as long as the row hides nothing
    Rows(window=30, mean=20, causal=False, rows=2, kv_heads=2),
    Rows(queries=50, keys=200, mean=15, rows=3, window=9),  # some documents have no query
    Rows(mean=2, queries=40, keys=40),
]


@pytest.mark.parametrize("given", PLAIN + WIDE)
def test_documents_and_windows_are_passed_to_flash_attention(given, kernels):
    drawn = given.draw("cpu", torch.float32)
    whole = drawn.attend_plainly(torch.float64)
    for found, exact in zip(drawn.attend("flash"), whole, strict=True):
        assert (found - exact).norm() <= 2e-6 * exact.norm()


def test_bounds_have_one_shape_whatever_documents_there_are():
    few = find_varlen_rows(torch.tensor([[0, 0, 0, 0], [1, 1, 2, 2]]), 4)
    many = find_varlen_rows(torch.tensor([[0, 1, 2, 3], [1, 1, 1, 2]]), 4)
    assert few.key_bounds_L.shape == many.key_bounds_L.shape == (9,)
    assert few.key_bounds_L.tolist() == [0, 4, 6, 8, 8, 8, 8, 8, 8]
    assert few.limits.tolist() == [3, 4, 4]
    assert many.limits.tolist() == [6, 3, 3]
    assert {few.limits.device.type, many.limits.device.type} == {"cpu"}


def test_equal_numbers_in_two_rows_are_two_documents():
    rows = find_varlen_rows(torch.zeros(2, 3), 2)
    assert rows.key_bounds_L[:3].tolist() == [0, 3, 6]
    assert rows.query_bounds_L[:3].tolist() == [0, 2, 4]


def test_documents_known_to_the_host_need_no_read_from_the_device():
    documents = torch.zeros(1, 4, device="meta")  # has no values to read
    remember_copy(documents, torch.tensor([[0, 0, 1, 1]]))
    assert find_varlen_rows(documents, 4).limits.tolist() == [2, 2, 2]
    with pytest.raises(NotImplementedError):
        find_varlen_rows(torch.zeros(1, 4, device="meta"), 4)


@pytest.mark.parametrize("packed", [True, False])
def test_the_operator_matches_its_compiler_description(packed, kernels):
    parts = [torch.randn(2, 20, heads, 8).transpose(1, 2) for heads in (4, 2, 2)]
    bounds = None, None, None
    if packed:
        rows = find_varlen_rows(torch.arange(20).div(7).floor().expand(2, -1), 20)
        bounds = rows.query_bounds_L, rows.key_bounds_L, rows.limits
    given = *(part.requires_grad_() for part in parts), *bounds, 0.3, 5, 0
    tests = (
        "test_schema",
        "test_autograd_registration",
        "test_faketensor",
        "test_aot_dispatch_static",
    )
    library.opcheck(OPERATOR, given, test_utils=tests)
    assert OPERATOR(*given)[0].transpose(1, 2).is_contiguous()
