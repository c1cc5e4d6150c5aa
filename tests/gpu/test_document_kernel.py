"""Attention inside documents in one kernel, held to a mask in float32."""

import pytest
import torch

from trainrig.models.kernels.document_attention import document_attention

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU; run by `make gpu`"),
]
CASES = {  # rows, heads, key heads, places, channels of a head, mean length of a document
    "long": (2, 4, 4, 1024, 128, 300),
    "two key heads": (2, 4, 2, 1000, 64, 60),
    "one key head, odd sizes": (3, 6, 1, 333, 40, 5),
    "one document": (1, 2, 2, 257, 16, 10**9),
}


def attend(case, causal, dtype):
    """What is seen, and the gradients of queries, keys and values."""
    rows, heads, kv_heads, places, width, mean = CASES[case]
    generator = torch.Generator("cuda").manual_seed(0)

    def draw(heads):
        x_BTHD = torch.randn(rows, places, heads, width, generator=generator, device="cuda")
        return x_BTHD.bfloat16().to(dtype).transpose(1, 2).requires_grad_()

    given = draw(heads), draw(kv_heads), draw(kv_heads)
    begins = torch.rand(rows, places, generator=generator, device="cuda") < 1 / mean
    documents, gradient = begins.long().cumsum(1), draw(heads).detach()
    if dtype == torch.bfloat16:
        scale = width**-0.5
        seen = document_attention(*given, documents, scale=scale, causal=causal)
    else:
        mask = documents[:, None, :, None] == documents[:, None, None, :]
        seen = torch.nn.functional.scaled_dot_product_attention(
            *given, attn_mask=mask.tril() if causal else mask, enable_gqa=True
        )
    return [seen.detach(), *torch.autograd.grad(seen, given, gradient)]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_it_is_what_a_mask_gives_and_the_same_bits_again(case, causal):
    first, again = (attend(case, causal, torch.bfloat16) for _ in range(2))
    for ours, same, whole in zip(first, again, attend(case, causal, torch.float32), strict=True):
        assert torch.equal(ours, same)
        assert (ours.float() - whole).norm() <= 1e-2 * whole.norm()


def test_what_is_in_another_document_changes_nothing():
    places, width = 512, 64
    x = torch.randn(3, 1, 2, places, width, device="cuda").bfloat16()
    documents = (torch.arange(places, device="cuda")[None] >= 200).long()
    settings = {"scale": width**-0.5, "causal": True}
    seen = document_attention(*x, documents, **settings)
    x[:, :, :, :200] = 100
    assert torch.equal(document_attention(*x, documents, **settings)[:, :, 200:], seen[:, :, 200:])
