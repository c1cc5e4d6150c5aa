"""Attention in blocks of queries: what torch's own kernels have no backward pass for on a CPU.

Sliding windows (only the keys near a block are touched), soft-capped logits, attention sinks,
linear biases and documents within a row, forward and backward, without ever holding [T, S]
logits: like FlashAttention (Dao et al. 2022, arXiv:2205.14135) the backward pass computes them
again from the saved sum of exponentials. Plain torch, so it runs on any device, and the same
shapes give the same bits. Logits are computed in float32.

Shapes: B batch, T queries (the last of S positions), S keys, H query heads, K key and value heads,
G query heads a key head, D channels of one head; t queries of a block, s keys that they may see.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, library

QUERIES = 128  # of a block: its logits fit a core's cache for heads and windows of usual size


def blocked_attention(
    query_BHTD: Tensor,
    key_BKSD: Tensor,
    value_BKSD: Tensor,
    *,
    scale: float,
    window: int | None = None,
    cap: float | None = None,
    documents_BS: Tensor | None = None,
    slopes_H: Tensor | None = None,
    sinks_H: Tensor | None = None,
    causal: bool = True,
) -> Tensor:
    """What each query sees, [B, H, T, D]: itself and the positions before it, of which only those
    of its own document, and, with itself, the last `window`. Not `causal`: also those after it, and
    (`window` - 1) / 2 on either side.

    Logits are `scale` times the products; then `cap` tanh(x / `cap`); then less slope times
    distance. `sinks_H` are logits of a key for each head that holds nothing.
    """
    inputs = query_BHTD, key_BKSD, value_BKSD, documents_BS, slopes_H, sinks_H
    seen: Tensor = _attention(*inputs, scale, window, cap, causal)[0]
    return seen


class _Blocks:
    """The logits of each block of queries, the same way forward and backward."""

    def __init__(
        self,
        query_BHTD: Tensor,
        key_BKSD: Tensor,
        documents_BS: Tensor | None,
        slopes_H: Tensor | None,
        scale: float,
        window: int | None,
        cap: float | None,
        causal: bool = True,
    ) -> None:
        batch, heads, self.new, width = query_BHTD.shape
        self.kv_heads, self.seen = key_BKSD.shape[1:3]
        self.groups = heads // self.kv_heads
        self.query_BKGTD = query_BHTD.reshape(batch, self.kv_heads, self.groups, self.new, width)
        self.key_BKSD, self.documents_BS = key_BKSD, documents_BS
        self.slopes_KG11 = None if slopes_H is None else slopes_H.view(self.kv_heads, -1, 1, 1)
        self.scale, self.cap, self.causal = scale, cap, causal
        self.past = self.seen - self.new
        # How far one may look back, and ahead; None: to the end.
        self.back = None if window is None else window - 1 if causal else (window - 1) // 2
        self.ahead = 0 if causal else self.back

    def ranges(self) -> Iterator[tuple[slice, slice]]:
        """Queries of each block, and the keys that any of them may see."""
        for begin in range(0, self.new, QUERIES):
            end = min(begin + QUERIES, self.new)
            first = 0 if self.back is None else max(0, begin + self.past - self.back)
            last = self.seen
            if self.ahead is not None:
                last = min(last, end + self.past + self.ahead)
            yield slice(begin, end), slice(first, last)

    def logits(self, queries: slice, keys: slice) -> tuple[Tensor, Tensor | None]:
        """[B, K, G, t, s], minus infinity where nothing may be seen; and tanh's value, if capped,
        whose square is what backward needs."""
        query = self.query_BKGTD[:, :, :, queries].float() * self.scale
        key = self.key_BKSD[:, :, keys].float()
        x_BKGts = _split_rows(torch.matmul(query.flatten(2, 3), key.mT), self.groups)
        bent = None
        if self.cap is not None:
            bent = torch.tanh(x_BKGts / self.cap)
            x_BKGts = bent * self.cap
        device = key.device
        here = torch.arange(queries.start, queries.stop, device=device)[:, None] + self.past
        distance_ts = here - torch.arange(keys.start, keys.stop, device=device)
        if self.slopes_KG11 is not None:
            x_BKGts = x_BKGts - self.slopes_KG11 * distance_ts.abs()
        hidden_ts = torch.zeros_like(distance_ts, dtype=torch.bool)
        if self.ahead is not None:
            hidden_ts = distance_ts < -self.ahead
        if self.back is not None:
            hidden_ts = hidden_ts | (distance_ts > self.back)
        if self.documents_BS is None:
            return x_BKGts.masked_fill(hidden_ts, -torch.inf), bent
        own = self.documents_BS[:, queries.start + self.past : queries.stop + self.past]
        hidden_Bts = hidden_ts | (own[:, :, None] != self.documents_BS[:, None, keys])
        return x_BKGts.masked_fill(hidden_Bts[:, None, None], -torch.inf), bent


def _split_heads(x_BHT: Tensor, kv_heads: int) -> Tensor:
    """[B, H, ...] to [B, K, G, ...]."""
    return x_BHT.reshape(x_BHT.shape[0], kv_heads, -1, *x_BHT.shape[2:])


def _split_rows(x_BKR: Tensor, groups: int) -> Tensor:
    """[B, K, G t, ...] to [B, K, G, t, ...]."""
    return x_BKR.reshape(*x_BKR.shape[:2], groups, -1, x_BKR.shape[-1])


@library.custom_op("trainrig::blocked_attention", mutates_args=())
def _attention(
    query_BHTD: Tensor,
    key_BKSD: Tensor,
    value_BKSD: Tensor,
    documents_BS: Tensor | None,
    slopes_H: Tensor | None,
    sinks_H: Tensor | None,
    scale: float,
    window: int | None,
    cap: float | None,
    causal: bool,
) -> tuple[Tensor, Tensor]:
    """What is seen, [B, H, T, D], and the logarithm of the sum of exponentials, [B, H, T]."""
    blocks = _Blocks(query_BHTD, key_BKSD, documents_BS, slopes_H, scale, window, cap, causal)
    seen_BKGTD = torch.empty_like(blocks.query_BKGTD)
    sums_BKGT = seen_BKGTD.new_empty(seen_BKGTD.shape[:-1], dtype=torch.float32)
    sinks_KG1 = None if sinks_H is None else sinks_H.float().view(blocks.kv_heads, -1, 1)
    for queries, keys in blocks.ranges():
        x_BKGts, _ = blocks.logits(queries, keys)
        sums = x_BKGts.logsumexp(-1)
        if sinks_KG1 is not None:
            sums = torch.logaddexp(sums, sinks_KG1)
        shares = (x_BKGts - sums[..., None]).exp()
        seen = torch.matmul(shares.flatten(2, 3), value_BKSD[:, :, keys].float())
        seen_BKGTD[:, :, :, queries] = _split_rows(seen, blocks.groups).to(query_BHTD.dtype)
        sums_BKGT[..., queries] = sums
    return seen_BKGTD.flatten(1, 2), sums_BKGT.flatten(1, 2)


@_attention.register_fake
def _attention_shapes(
    query_BHTD: Tensor,
    key_BKSD: Tensor,
    value_BKSD: Tensor,
    documents_BS: Tensor | None,
    slopes_H: Tensor | None,
    sinks_H: Tensor | None,
    scale: float,
    window: int | None,
    cap: float | None,
    causal: bool,
) -> tuple[Tensor, Tensor]:
    size = query_BHTD.shape
    return query_BHTD.new_empty(size), query_BHTD.new_empty(size[:-1], dtype=torch.float32)


@library.custom_op("trainrig::blocked_attention_backward", mutates_args=())
def _attention_backward(
    slope_BHTD: Tensor,
    seen_BHTD: Tensor,
    sums_BHT: Tensor,
    query_BHTD: Tensor,
    key_BKSD: Tensor,
    value_BKSD: Tensor,
    documents_BS: Tensor | None,
    slopes_H: Tensor | None,
    sinks_H: Tensor | None,
    scale: float,
    window: int | None,
    cap: float | None,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of queries, keys, values and sinks (empty without sinks)."""
    blocks = _Blocks(query_BHTD, key_BKSD, documents_BS, slopes_H, scale, window, cap, causal)
    kv_heads = blocks.kv_heads
    slope_BKGTD = _split_heads(slope_BHTD, kv_heads)
    sums_BKGT = _split_heads(sums_BHT, kv_heads)
    # Of a row of the softmax: sum over keys of share times the share's gradient.
    mean_BHT = (slope_BHTD.float() * seen_BHTD.float()).sum(-1)
    mean_BKGT = _split_heads(mean_BHT, kv_heads)
    of_query = torch.empty_like(blocks.query_BKGTD)
    of_key = torch.zeros(key_BKSD.shape, dtype=torch.float32, device=key_BKSD.device)
    of_value = torch.zeros(value_BKSD.shape, dtype=torch.float32, device=key_BKSD.device)
    for queries, keys in blocks.ranges():
        x_BKGts, bent = blocks.logits(queries, keys)
        shares = (x_BKGts - sums_BKGT[..., queries, None]).exp()
        slope = slope_BKGTD[:, :, :, queries].float().flatten(2, 3)
        of_value[:, :, keys] += torch.matmul(shares.flatten(2, 3).mT, slope)
        of_shares = torch.matmul(slope, value_BKSD[:, :, keys].float().mT)
        of_x = shares * (_split_rows(of_shares, blocks.groups) - mean_BKGT[..., queries, None])
        if bent is not None:
            of_x = of_x * (1 - bent * bent)
        of_x = of_x.flatten(2, 3) * scale
        found = torch.matmul(of_x, key_BKSD[:, :, keys].float())
        of_query[:, :, :, queries] = _split_rows(found, blocks.groups).to(of_query.dtype)
        query = blocks.query_BKGTD[:, :, :, queries].float().flatten(2, 3)
        of_key[:, :, keys] += torch.matmul(of_x.mT, query)
    of_sinks = sums_BHT.new_empty(0)
    if sinks_H is not None:
        shares_BHT = (sinks_H.float()[:, None] - sums_BHT).exp()
        of_sinks = -(shares_BHT * mean_BHT).sum((0, 2)).to(sinks_H.dtype)
    dtype = query_BHTD.dtype
    return of_query.flatten(1, 2), of_key.to(dtype), of_value.to(dtype), of_sinks


@_attention_backward.register_fake
def _attention_backward_shapes(
    slope_BHTD: Tensor,
    seen_BHTD: Tensor,
    sums_BHT: Tensor,
    query_BHTD: Tensor,
    key_BKSD: Tensor,
    value_BKSD: Tensor,
    documents_BS: Tensor | None,
    slopes_H: Tensor | None,
    sinks_H: Tensor | None,
    scale: float,
    window: int | None,
    cap: float | None,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    dtype = query_BHTD.dtype
    of_sinks = sums_BHT.new_empty(0) if sinks_H is None else torch.empty_like(sinks_H)
    return (
        query_BHTD.new_empty(query_BHTD.shape),
        key_BKSD.new_empty(key_BKSD.shape, dtype=dtype),
        value_BKSD.new_empty(value_BKSD.shape, dtype=dtype),
        of_sinks,
    )


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    query, key, value, documents, slopes, sinks, *ctx.settings = inputs
    ctx.save_for_backward(output[0], output[1], query, key, value, documents, slopes, sinks)


def _differentiate(ctx: Any, slope: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    saved = ctx.saved_tensors  # once: recomputation gives them a single time
    *gradients, of_sinks = _attention_backward(slope, *saved, *ctx.settings)
    return *gradients, None, None, None if saved[-1] is None else of_sinks, *[None] * 4


_attention.register_autograd(_differentiate, setup_context=_save)

# As recomputation knows it.
OPERATOR = torch.ops.trainrig.blocked_attention.default
