"""Attention with learned biases, compared with torch's."""

import math

import pytest
import torch
import torch.nn.functional as F

from trainrig.models.kernels.cpu_attention import biased_attention, suits_biased_attention


def inputs(rows, heads, queries, keys, channels, of_rows):
    dice = torch.Generator().manual_seed(0)
    sizes = (rows, queries, heads, channels), *[(rows, keys, heads, channels)] * 2
    parts = [torch.randn(size, generator=dice).requires_grad_() for size in sizes]
    bias = torch.randn(of_rows, heads, queries, keys, generator=dice).requires_grad_()
    return [*parts, bias]


@pytest.mark.parametrize("scale", [1.0, 0.25])
@pytest.mark.parametrize("of_rows", [1, 3])
@pytest.mark.parametrize("queries", [9, 1])
def test_biased_attention_equals_torch(queries, of_rows, scale):
    hidden = torch.rand(3, 1, queries, 9, generator=torch.Generator().manual_seed(1)) < 0.3
    hidden[..., 0] = False  # each query sees a key
    found = []
    for attend in (biased_attention, _by_torch):
        *parts, bias = given = inputs(3, 4, queries, 9, 8, of_rows)
        added = bias.masked_fill(hidden, -math.inf)
        seen = attend(*(part.transpose(1, 2) for part in parts), added, scale=scale)
        (seen * torch.arange(8)).sum().backward()
        found.append([seen, *(part.grad for part in given)])
    for ours, theirs in zip(*found, strict=True):
        assert torch.isfinite(ours).all()
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def _by_torch(query, key, value, added, *, scale):
    return F.scaled_dot_product_attention(query, key, value, attn_mask=added, scale=scale)


def test_biased_attention_suits_only_float32_biases_with_gradients():
    query, key, _, bias = inputs(2, 4, 5, 5, 8, 1)
    query = query.transpose(1, 2)
    key = key.transpose(1, 2)
    assert suits_biased_attention(bias, query, key)
    assert not suits_biased_attention(bias.detach(), query, key)
    assert not suits_biased_attention(bias, query, key[:, :2])
    assert not suits_biased_attention(bias.bfloat16(), query.bfloat16(), key.bfloat16())
