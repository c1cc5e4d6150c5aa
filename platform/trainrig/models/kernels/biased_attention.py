"""Attention with a learnt bias on the logits, on a CPU, by plain products.

torch's CPU kernels compute no gradient for such a bias, so torch falls back on plain products, with
a softmax that searches for fully masked rows and a separate pass for the sum. Here the bias is
added inside the product, and no search is made. The results are equal within rounding, and
bit-identical on some processors.

Shapes: B rows, T queries, S keys, H heads, D channels of one head.
"""

import torch
from torch import Tensor


def biased_attention(
    query_BHTD: Tensor, key_BHSD: Tensor, value_BHSD: Tensor, added_BHTS: Tensor, *, scale: float
) -> Tensor:
    """Return the attention output of each query, [B, H, T, D].

    `added_BHTS` is minus infinity where a query may not look, and B may be 1 in it. A query that
    may look nowhere gives NaN.
    """
    rows, heads, queries, channels = query_BHTD.shape
    keys = key_BHSD.shape[2]
    added_BHTS = added_BHTS.expand(rows, heads, queries, keys)
    logits = torch.baddbmm(
        added_BHTS.reshape(rows * heads, queries, keys),
        query_BHTD.reshape(rows * heads, queries, channels),
        key_BHSD.reshape(rows * heads, keys, channels).transpose(1, 2),
        alpha=scale,
    )
    seen = torch.bmm(logits.softmax(-1), value_BHSD.reshape(rows * heads, keys, channels))
    return seen.view(rows, heads, queries, channels)


def suits_biased_attention(added: Tensor, query_BHTD: Tensor, key_BKSD: Tensor) -> bool:
    """Return whether `biased_attention` is faster than torch for the bias `added`.

    That is so for a float32 bias with a gradient on a CPU, with the same number of key heads and
    query heads.
    """
    return (
        added.requires_grad
        and added.dtype == query_BHTD.dtype == torch.float32
        and query_BHTD.device.type == "cpu"
        and query_BHTD.shape[1] == key_BKSD.shape[1]
    )
