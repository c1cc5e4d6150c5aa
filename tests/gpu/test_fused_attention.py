"""Attention kernels for documents, windows, caps, sinks and ALiBi, compared with plain products."""

import dataclasses

import pytest
import torch
from gpu.attention_rows import RINGS, ROWS, Rows

from trainrig.models.kernels.kernel_choice import (
    AttentionCase,
    choose_backward_tile,
    choose_forward_tile,
    estimate_backward_bytes,
    estimate_forward_bytes,
    find_obstacle,
)
from trainrig.models.kernels.kernel_support import read_card

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


KERNELS = "flash", "flex", "triton"


@pytest.fixture
def deterministic():
    """Make FlashAttention-2 add in one order, which it does only on request."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("given", ROWS + LONG)
@pytest.mark.parametrize("kernel", KERNELS)
def test_fused_attention_equals_plain_products_and_is_reproducible(
    kernel, given, dtype, deterministic
):
    features = ("a cap, a sink or a slope",) if given.changes_logits else ()
    case = AttentionCase(given.width, str(dtype).removeprefix("torch."), features)
    obstacle = find_obstacle(kernel, case, read_card(torch.device("cuda", 0)))
    if obstacle:
        assert (kernel, given.changes_logits) == ("flash", True), obstacle
        pytest.skip(obstacle)
    drawn = given.draw("cuda", dtype)
    first = drawn.attend(kernel)
    again = drawn.attend(kernel)
    for ours, same, exact in zip(first, again, drawn.attend_plainly(torch.float32), strict=True):
        assert torch.equal(ours, same)
        assert (ours.float() - exact).norm() <= 2e-2 * exact.norm()


@pytest.mark.parametrize("width", [16, 64, 128, 192, 256])
def test_our_kernel_takes_no_more_shared_memory_than_its_tiles_are_chosen_by(width, monkeypatch):
    from trainrig.models.kernels import attention_kernel

    taken = {}
    launch = attention_kernel.launch

    def note(kernel, *given):
        compiled = launch(kernel, *given)
        taken[kernel.__name__] = compiled.metadata.shared
        return compiled

    monkeypatch.setattr(attention_kernel, "launch", note)
    Rows(width=width).draw("cuda", torch.bfloat16).attend("triton")
    available = read_card(torch.device("cuda", 0)).shared_memory
    most = {
        "_attend": estimate_forward_bytes(choose_forward_tile(width, available)),
        "_differentiate_queries": estimate_backward_bytes(choose_backward_tile(width, available)),
    }
    most["_differentiate_keys"] = most["_differentiate_queries"]
    assert taken.keys() == most.keys()
    assert all(taken[name] <= most[name] for name in most), (taken, most)


@pytest.mark.parametrize("kernel", KERNELS)
def test_nan_propagates_only_to_what_depends_on_it(kernel):
    drawn = Rows(queries=300, keys=300, width=64).draw("cuda", torch.bfloat16)
    drawn.parts[0][0, 0, 200] = torch.nan
    seen, of_query, of_key, _ = drawn.attend(kernel)
    assert seen[0, 0, 200].isnan().all()
    assert of_query[0, 0, 200].isnan().all()
    assert of_key[0, 0, :201].isnan().any()
    assert not seen[0, 0, :200].isnan().any()


@pytest.mark.parametrize("given", RINGS)
def test_a_ring_merges_the_results_of_chunks(given):
    drawn = given.draw("cuda", torch.bfloat16)
    first = drawn.attend_in_ring()
    again = drawn.attend_in_ring()
    whole = drawn.attend_plainly(torch.float32)
    for ours, same, exact in zip(first, again, whole, strict=True):
        assert torch.equal(ours, same)
        assert (ours.float() - exact).norm() <= 2e-2 * exact.norm()


@pytest.mark.parametrize("kernel", KERNELS)
def test_other_documents_change_nothing(kernel):
    drawn = Rows(queries=512, keys=512, width=64).draw("cuda", torch.bfloat16)
    documents = (torch.arange(512, device="cuda")[None] >= 200).long()
    drawn = dataclasses.replace(drawn, documents=documents)
    seen = drawn.attend(kernel)[0]
    for part in drawn.parts:
        part[:, :, :200] = 100
    assert torch.equal(drawn.attend(kernel)[0][:, :, 200:], seen[:, :, 200:])
