"""Attention by plain products, one block of queries at a time, forward and backward.

The logits [T, S] are never held as a whole: as in FlashAttention (Dao et al. 2022,
arXiv:2205.14135), the backward pass computes them again from the saved log-sums of exponentials.
This is plain torch, so it runs on any device, and the same shapes give the same bits. Logits are
computed in float32. On a CPU, long rows with documents are computed one by one, with only the keys
between the ends of a block's documents; on a GPU, finding these ends would wait for the device.

Shapes: B batch, T queries (the last of S positions), S keys, H query heads, K key and value heads,
G query heads for each key head, D channels of one head; t queries of a block, s keys of its range,
R rows of G t.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

QUERIES = 128  # queries of a block, whose logits fit a core's cache for usual heads and windows
# Subtracted from logits instead of minus infinity, which would give NaN.
_LEAST = torch.finfo(torch.float32).min


class Blocks:
    """Logits of each block of queries, computed in the same way forward and backward."""

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
        """Keep the tensors and the limits of attention.

        The first query is `past` places after the first key, which may be more than the number of
        keys; by default the queries are the last places. `own_BT` are the documents of the queries;
        by default they are the last of `documents_BS`.
        """
        batch, heads, self.new, width = query_BHTD.shape
        self.kv_heads, self.seen = key_BKSD.shape[1:3]
        self.groups = heads // self.kv_heads
        self.query_BKGTD = query_BHTD.reshape(batch, self.kv_heads, self.groups, self.new, width)
        self.key_BKSD = key_BKSD
        self.documents_BS = documents_BS
        self.slopes_KG11 = None if slopes_H is None else slopes_H.view(self.kv_heads, -1, 1, 1)
        self.scale = scale
        self.cap = cap
        self.causal = causal
        self.past = self.seen - self.new if past is None else past
        if own_BT is None and documents_BS is not None:
            own_BT = documents_BS[:, self.past : self.past + self.new]
        self.own_BT = own_BT
        self._reach: _Reach | None = None
        if own_BT is not None and _computes_rows_separately(documents_BS, self.new) and batch == 1:
            assert documents_BS is not None
            self._reach = _Reach(own_BT, documents_BS)
        # How many places a query may look back and ahead; None: to the end.
        self.back = None if window is None else window - 1 if causal else (window - 1) // 2
        self.ahead = 0 if causal else self.back

    def split_ranges(self) -> Iterator[tuple[slice, slice]]:
        """Yield the queries of each block, and the range of keys that any of them attends to."""
        for begin in range(0, self.new, QUERIES):
            end = min(begin + QUERIES, self.new)
            first = 0 if self.back is None else max(0, begin + self.past - self.back)
            last = self.seen
            if self.ahead is not None:
                last = min(last, end + self.past + self.ahead)
            if self._reach is not None:
                low, high = self._reach.find_range(begin, end)
                first = max(first, low)
                last = min(last, high)
            if first < last:
                yield slice(begin, end), slice(first, last)

    def compute_logits(self, queries: slice, keys: slice) -> tuple[Tensor, Tensor | None]:
        """Return logits [B, K, G, t, s], minus infinity where hidden, and tanh's value if capped.

        The backward pass needs the square of tanh's value.
        """
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
    """Ranges of keys of the documents of one row."""

    def __init__(self, own_1T: Tensor, documents_1S: Tensor) -> None:
        self._own: list[int] = own_1T[0].tolist()
        self._first: dict[int, int] = {}
        self._last: dict[int, int] = {}
        for place, document in enumerate(documents_1S[0].tolist()):
            self._first.setdefault(document, place)
            self._last[document] = place + 1

    def find_range(self, begin: int, end: int) -> tuple[int, int]:
        """Return the range of keys of the documents of queries `begin` to `end`.

        The end is exclusive; (0, 0) means that there is no such key.
        """
        documents = self._first.keys() & set(self._own[begin:end])
        lows, highs = ([of[document] for document in documents] for of in (self._first, self._last))
        return min(lows, default=0), max(highs, default=0)


def _computes_rows_separately(documents_BS: Tensor | None, new: int) -> bool:
    """Return whether rows are computed one by one: on a CPU with documents and several blocks."""
    return documents_BS is not None and documents_BS.device.type == "cpu" and new > QUERIES


def split_batch(documents_BS: Tensor | None, query_BHTD: Tensor) -> list[slice]:
    """Return the groups of rows that are computed together."""
    batch, _, new, _ = query_BHTD.shape
    if not _computes_rows_separately(documents_BS, new):
        return [slice(0, batch)]
    return [slice(row, row + 1) for row in range(batch)]


def look(
    blocks: Blocks,
    value_BKSD: Tensor,
    sinks_H: Tensor | None,
    seen_BHTD: Tensor,
    sums_BHT: Tensor,
) -> None:
    """Fill `seen_BHTD` with the attention output, and `sums_BHT` with the log-sum of exponentials.

    A query that attends to nothing gets 0 and minus infinity.
    """
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


def compute_mean_gradients(gradient_BHTD: Tensor, seen_BHTD: Tensor) -> Tensor:
    """Return the sum over keys of share times its gradient for each softmax, [B, H, T]."""
    return (gradient_BHTD.float() * seen_BHTD.float()).sum(-1)


def differentiate_sinks(sinks_H: Tensor, sums_BHT: Tensor, mean_BHT: Tensor) -> Tensor:
    """Return the gradients of the sinks, [H]."""
    shares_BHT = (sinks_H.float()[:, None] - sums_BHT).exp()
    return -(shares_BHT * mean_BHT).sum((0, 2)).to(sinks_H.dtype)


def differentiate(
    blocks: Blocks,
    value_BKSD: Tensor,
    gradient_BHTD: Tensor,
    mean_BHT: Tensor,
    sums_BHT: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the contributions of these keys to the gradients of queries, keys and values.

    Those of keys and values are float32. `sums_BHT` and `mean_BHT` are over all keys that a query
    attends to, including keys not given here.
    """
    key_BKSD = blocks.key_BKSD
    kv_heads = blocks.kv_heads
    gradient_BKGTD = _split_heads(gradient_BHTD, kv_heads)
    sums_BKGT = _split_heads(sums_BHT, kv_heads)
    mean_BKGT = _split_heads(mean_BHT, kv_heads)
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
    """Return `x_BHT` [B, H, ...] as [B, K, G, ...]."""
    return x_BHT.reshape(x_BHT.shape[0], kv_heads, -1, *x_BHT.shape[2:])


def _split_rows(x_BKR: Tensor, groups: int) -> Tensor:
    """Return `x_BKR` [B, K, G t, ...] as [B, K, G, t, ...]."""
    return x_BKR.reshape(*x_BKR.shape[:2], groups, -1, x_BKR.shape[-1])
