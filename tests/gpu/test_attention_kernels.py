"""The columns of docs/attention.md on which kernel computes attention, checked on a GPU."""

import pytest
import torch
from support.attention_kernels import CASES, called, documented

from trainrig.models.attention import Sight
from trainrig.models.decoder import Decoder, DecoderConfig

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU; run by `make gpu`"),
]

COLUMNS = {
    "GPU, bfloat16": (torch.bfloat16, False),
    "GPU, bfloat16, deterministic": (torch.bfloat16, True),
    "GPU, float32": (torch.float32, False),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kv_heads", [2, 4])
@pytest.mark.parametrize("column", COLUMNS)
def test_kernels_are_those_that_the_page_names(case, kv_heads, column):
    said = documented()[case][column]
    dtype, deterministic = COLUMNS[column]
    torch.use_deterministic_algorithms(deterministic)
    try:
        found = called(case, "cuda", dtype, kv_heads)
    finally:
        torch.use_deterministic_algorithms(False)
    if kv_heads < 4 and {"memory-efficient"} in said:  # this kernel may take no grouped queries
        said.append({"plain products"})
    assert found in said or not said


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("length", "channels"), [(2048, 128), (1000, 64), (96, 80)])
def test_deterministic_attention_is_reproducible_and_close_to_float32(causal, length, channels):
    sizes = {"channels": 4 * channels, "heads": 4, "vocabulary": 8, "positions": length}
    attention = Decoder(DecoderConfig(layers=1, **sizes)).layers[0].attention
    torch.manual_seed(0)
    shape = 3, 4, length, channels
    query, key, value, gradient = (
        torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(4)
    )

    def attend(dtype):
        given = [part.to(dtype).requires_grad_() for part in (query, key, value)]
        seen = attention.attend(*given, Sight(causal=causal))
        return [seen, *torch.autograd.grad(seen, given, gradient.to(dtype))]

    torch.use_deterministic_algorithms(True)
    try:
        first, *others = [attend(torch.bfloat16) for _ in range(6)]
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(a, b) for found in others for a, b in zip(first, found, strict=True))
    for ours, whole in zip(first, attend(torch.float32), strict=True):
        torch.testing.assert_close(ours.float(), whole, rtol=2e-2, atol=2e-2)
