"""Attention whose logits have learnt numbers added, on a CPU, by plain products.

torch's own kernels for CPUs give such numbers no gradient, so it falls back on plain products, with
a softmax that looks for rows that see nothing, and a pass for the sum. Here the sum is made in the
product, and nothing is looked for: the same within rounding, to the bit on some processors.

Shapes: B rows, T queries, S keys, H heads, D channels of one head.
"""

import torch
from torch import Tensor


def biased_attention(
    query_BHTD: Tensor, key_BHSD: Tensor, value_BHSD: Tensor, added_BHTS: Tensor, *, scale: float
) -> Tensor:
    """What each query sees, [B, H, T, D]. `added_BHTS` is minus infinity where it may not look, and
    may have 1 for B; a query that sees nothing gets no numbers."""
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


def is_learnt(added: Tensor, query_BHTD: Tensor, key_BKSD: Tensor) -> bool:
    """Whether `added` to the logits is read faster here than by torch: numbers that get a gradient,
    in float32 on a CPU, with as many key heads as query heads."""
    return (
        added.requires_grad
        and added.dtype == query_BHTD.dtype == torch.float32
        and query_BHTD.device.type == "cpu"
        and query_BHTD.shape[1] == key_BKSD.shape[1]
    )
