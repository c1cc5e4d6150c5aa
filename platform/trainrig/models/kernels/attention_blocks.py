"""Attention by plain products, a block of queries at a time, forward and backward.

[T, S] logits are never held: like FlashAttention (Dao et al. 2022, arXiv:2205.14135) the backward
pass computes them again from the saved sum of exponentials. Plain torch, so it runs on any device,
and the same shapes give the same bits. Logits are computed in float32. On a CPU a long row with
documents is read by itself, and a block's keys are those between the ends of its own documents; on
a GPU that would wait for the device to say where they are.

Shapes: B batch, T queries (the last of S positions), S keys, H query heads, K key and value heads,
G query heads a key head, D channels of one head; t queries of a block, s keys that they may see.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

QUERIES = 128  # of a block: its logits fit a core's cache for heads and windows of usual size
_LEAST = torch.finfo(torch.float32).min  # a sum to take from logits where nothing may be seen


class Blocks:
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
        past: int | None = None,
        own_BT: Tensor | None = None,
    ) -> None:
        """`past`: how many places the first query is behind the first key, which may be more than
        there are keys; None: the queries are the last. `own_BT`: the documents of the queries;
        None: they are among `documents_BS`."""
        batch, heads, self.new, width = query_BHTD.shape
        self.kv_heads, self.seen = key_BKSD.shape[1:3]
        self.groups = heads // self.kv_heads
        self.query_BKGTD = query_BHTD.reshape(batch, self.kv_heads, self.groups, self.new, width)
        self.key_BKSD, self.documents_BS = key_BKSD, documents_BS
        self.slopes_KG11 = None if slopes_H is None else slopes_H.view(self.kv_heads, -1, 1, 1)
        self.scale, self.cap, self.causal = scale, cap, causal
        self.past = self.seen - self.new if past is None else past
        if own_BT is None and documents_BS is not None:
            own_BT = documents_BS[:, self.past : self.past + self.new]
        self.own_BT = own_BT
        self._reach: _Reach | None = None
        if own_BT is not None and _rows_apart(documents_BS, self.new) and batch == 1:
            assert documents_BS is not None
            self._reach = _Reach(own_BT, documents_BS)
        # How far one may look back, and ahead; None: to the end.
        self.back = None if window is None else window - 1 if causal else (window - 1) // 2
        self.ahead = 0 if causal else self.back

    def split_ranges(self) -> Iterator[tuple[slice, slice]]:
        """Queries of each block, and the keys that any of them may see."""
        for begin in range(0, self.new, QUERIES):
            end = min(begin + QUERIES, self.new)
            first = 0 if self.back is None else max(0, begin + self.past - self.back)
            last = self.seen
            if self.ahead is not None:
                last = min(last, end + self.past + self.ahead)
            if self._reach is not None:
                low, high = self._reach.find_range(begin, end)
                first, last = max(first, low), min(last, high)
            if first < last:
                yield slice(begin, end), slice(first, last)

    def compute_logits(self, queries: slice, keys: slice) -> tuple[Tensor, Tensor | None]:
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
        if self.documents_BS is None or self.own_BT is None:
            return x_BKGts.masked_fill(hidden_ts, -torch.inf), bent
        own_Bt = self.own_BT[:, queries]
        hidden_Bts = hidden_ts | (own_Bt[:, :, None] != self.documents_BS[:, None, keys])
        return x_BKGts.masked_fill(hidden_Bts[:, None, None], -torch.inf), bent


class _Reach:
    """Where the documents of one row's queries stand among its keys."""

    def __init__(self, own_1T: Tensor, documents_1S: Tensor) -> None:
        self._own: list[int] = own_1T[0].tolist()
        self._first: dict[int, int] = {}
        self._last: dict[int, int] = {}
        for place, document in enumerate(documents_1S[0].tolist()):
            self._first.setdefault(document, place)
            self._last[document] = place + 1

    def find_range(self, begin: int, end: int) -> tuple[int, int]:
        """The first key of any document that queries `begin` to `end` are of, and that after the
        last; (0, 0): there is none."""
        documents = self._first.keys() & set(self._own[begin:end])
        lows, highs = ([of[each] for each in documents] for of in (self._first, self._last))
        return min(lows, default=0), max(highs, default=0)


def _rows_apart(documents_BS: Tensor | None, new: int) -> bool:
    """Whether rows are read one by one: queries of one block are read of all rows at once."""
    return documents_BS is not None and documents_BS.device.type == "cpu" and new > QUERIES


def split_batch(documents_BS: Tensor | None, query_BHTD: Tensor) -> list[slice]:
    """The rows that are read at a time."""
    batch, _, new, _ = query_BHTD.shape
    if not _rows_apart(documents_BS, new):
        return [slice(0, batch)]
    return [slice(row, row + 1) for row in range(batch)]


def look(
    blocks: Blocks,
    value_BKSD: Tensor,
    sinks_H: Tensor | None,
    seen_BHTD: Tensor,
    sums_BHT: Tensor,
) -> None:
    """Fill `seen_BHTD` with what is seen, and `sums_BHT` with the logarithm of the sum of
    exponentials: zeros and minus infinity where nothing may be."""
    seen_BKGTD = _split_heads(seen_BHTD.zero_(), blocks.kv_heads)
    sums_BKGT = _split_heads(sums_BHT.fill_(-torch.inf), blocks.kv_heads)
    sinks_KG1 = None if sinks_H is None else sinks_H.float().view(blocks.kv_heads, -1, 1)
    for queries, keys in blocks.split_ranges():
        x_BKGts, _ = blocks.compute_logits(queries, keys)
        sums = x_BKGts.logsumexp(-1)
        if sinks_KG1 is not None:
            sums = torch.logaddexp(sums, sinks_KG1)
        shares = (x_BKGts - sums[..., None].clamp(min=_LEAST)).exp()
        seen = torch.matmul(shares.flatten(2, 3), value_BKSD[:, :, keys].float())
        seen_BKGTD[:, :, :, queries] = _split_rows(seen, blocks.groups).to(seen_BKGTD.dtype)
        sums_BKGT[..., queries] = sums


def mean_gradients(gradient_BHTD: Tensor, seen_BHTD: Tensor) -> Tensor:
    """[B, H, T] of each row of the softmax: the sum over keys of share times its gradient."""
    return (gradient_BHTD.float() * seen_BHTD.float()).sum(-1)


def differentiate_sinks(sinks_H: Tensor, sums_BHT: Tensor, mean_BHT: Tensor) -> Tensor:
    """[H]."""
    shares_BHT = (sinks_H.float()[:, None] - sums_BHT).exp()
    return -(shares_BHT * mean_BHT).sum((0, 2)).to(sinks_H.dtype)


def differentiate(
    blocks: Blocks,
    value_BKSD: Tensor,
    gradient_BHTD: Tensor,
    mean_BHT: Tensor,
    sums_BHT: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """What these keys add to the gradients of queries, keys and values; the latter two in float32.

    `sums_BHT`: over all that a query sees, these keys or others; so is `mean_BHT`.
    """
    key_BKSD, kv_heads = blocks.key_BKSD, blocks.kv_heads
    gradient_BKGTD = _split_heads(gradient_BHTD, kv_heads)
    sums_BKGT, mean_BKGT = _split_heads(sums_BHT, kv_heads), _split_heads(mean_BHT, kv_heads)
    of_query = torch.zeros_like(blocks.query_BKGTD)
    of_key = torch.zeros(key_BKSD.shape, dtype=torch.float32, device=key_BKSD.device)
    of_value = torch.zeros(value_BKSD.shape, dtype=torch.float32, device=key_BKSD.device)
    for queries, keys in blocks.split_ranges():
        x_BKGts, bent = blocks.compute_logits(queries, keys)
        shares = (x_BKGts - sums_BKGT[..., queries, None]).exp()
        gradient = gradient_BKGTD[:, :, :, queries].float().flatten(2, 3)
        of_value[:, :, keys] += torch.matmul(shares.flatten(2, 3).mT, gradient)
        of_shares = torch.matmul(gradient, value_BKSD[:, :, keys].float().mT)
        of_x = shares * (_split_rows(of_shares, blocks.groups) - mean_BKGT[..., queries, None])
        if bent is not None:
            of_x = of_x * (1 - bent * bent)
        of_x = of_x.flatten(2, 3) * blocks.scale
        found = torch.matmul(of_x, key_BKSD[:, :, keys].float())
        of_query[:, :, :, queries] = _split_rows(found, blocks.groups).to(of_query.dtype)
        query = blocks.query_BKGTD[:, :, :, queries].float().flatten(2, 3)
        of_key[:, :, keys] += torch.matmul(of_x.mT, query)
    return of_query.flatten(1, 2), of_key, of_value


def _split_heads(x_BHT: Tensor, kv_heads: int) -> Tensor:
    """[B, H, ...] to [B, K, G, ...]."""
    return x_BHT.reshape(x_BHT.shape[0], kv_heads, -1, *x_BHT.shape[2:])


def _split_rows(x_BKR: Tensor, groups: int) -> Tensor:
    """[B, K, G t, ...] to [B, K, G, t, ...]."""
    return x_BKR.reshape(*x_BKR.shape[:2], groups, -1, x_BKR.shape[-1])
