"""Attention inside documents and windows on a GPU, by torch's FlashAttention-2 for sequences of
various lengths.

The kernel of `torch.nn.attention.varlen.varlen_attn`, called as that function calls it, by the
operators below it: their signatures are the same in torch 2.11 to 2.13, and they take fewer key
heads than query heads in all of these. The backward pass adds in one order where
`torch.use_deterministic_algorithms` is on (torch hands its flag on, for sequences of various
lengths too). It differentiates no sums of exponentials, so sinks are not computed here.

The kernel takes the bounds of all documents as a tensor of their number, and the longest length as
a Python number. As an operator of its own, this takes bounds padded to one shape instead, and both
numbers in a tensor on the host, so that a compiled layer is one graph whatever documents there are.

Shapes: B rows, T queries (the last of S places), S keys, H query heads, K key heads, D channels of
one head; N documents of all rows, L = B S + 1 bounds at most.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, library

from trainrig.models.kernels.layout import allocate_by_place
from trainrig.on_host import find_on_host

_kernel = torch.ops.aten._flash_attention_forward
_kernel_backward = torch.ops.aten._flash_attention_backward


@dataclass(frozen=True)
class VarlenRows:
    """Where documents begin in rows that are read one after another."""

    # None, all three: each row is one document.
    query_bounds_L: Tensor | None  # int32; of documents among the queries, the last one repeated
    key_bounds_L: Tensor | None  # int32; the same among the keys
    limits: Tensor | None  # int64 [3] on the host: documents, and the most queries and keys of any
    queries: int  # of a row
    keys: int  # of a row

    def fits(self, query_BHTD: Tensor, key_BKSD: Tensor) -> bool:
        """Return whether these rows are those of the queries and the keys."""
        return (query_BHTD.shape[2], key_BKSD.shape[2]) == (self.queries, self.keys)


def find_varlen_rows(documents_BS: Tensor, queries: int) -> VarlenRows:
    """Return the bounds of the documents of rows, of which the last `queries` places ask.

    Places of a document stand together. Waits for the device unless the host knows the documents
    (trainrig/on_host.py).
    """
    on_host = find_on_host(documents_BS)
    known = documents_BS.cpu() if on_host is None else on_host
    rows, seen = known.shape
    begins_BS = torch.ones_like(known, dtype=torch.bool)
    begins_BS[:, 1:] = known[:, 1:] != known[:, :-1]
    key_bounds = torch.cat((begins_BS.flatten().nonzero().flatten(), torch.tensor([rows * seen])))
    # A document's queries are those of its places that are among the last of its row.
    row, place = key_bounds // seen, key_bounds % seen
    query_bounds = row * queries + (place - (seen - queries)).clamp(min=0)
    lengths = query_bounds.diff(), key_bounds.diff()
    limits = [len(key_bounds) - 1, *(int(each.max()) for each in lengths)]
    bounds_2L = torch.empty(2, rows * seen + 1, dtype=torch.int32)
    for padded_L, bounds in zip(bounds_2L, (query_bounds, key_bounds), strict=True):
        padded_L[: len(bounds)] = bounds
        padded_L[len(bounds) :] = bounds[-1]
    if documents_BS.device.type == "cuda":
        bounds_2L = bounds_2L.pin_memory().to(documents_BS.device, non_blocking=True)
    return VarlenRows(bounds_2L[0], bounds_2L[1], torch.tensor(limits), queries, seen)


def varlen_attention(
    query_BHTD: Tensor,
    key_BKSD: Tensor,
    value_BKSD: Tensor,
    rows: VarlenRows,
    *,
    scale: float,
    window: int | None = None,
    causal: bool = True,
) -> Tensor:
    """Return what each query sees of its own document, [B, H, T, D]: itself, what is before it,
    and of these the last `window`; not `causal`, also what is after it, and the window is around
    it."""
    left, right = find_reach_of_window(window, causal)
    bounds = rows.query_bounds_L, rows.key_bounds_L, rows.limits
    given = query_BHTD, key_BKSD, value_BKSD, *bounds
    seen: Tensor = _attention(*given, scale, left, right)[0]
    return seen


def find_reach_of_window(window: int | None, causal: bool) -> tuple[int, int]:
    """Return how many places before and after itself a query sees, as the kernel counts: -1, all
    of them."""
    if window is None:
        return -1, 0 if causal else -1
    if causal:
        return window - 1, 0
    return (window - 1) // 2, (window - 1) // 2


def _prepare(
    query_BHTD: Tensor, key_BKSD: Tensor, bounds: tuple[Tensor | None, Tensor | None, Tensor | None]
) -> tuple[Tensor, Tensor, int, int]:
    """Return what the kernel is told of the documents: their bounds, and the most queries and keys
    of any."""
    query_bounds_L, key_bounds_L, limits = bounds
    rows, queries, keys = query_BHTD.shape[0], query_BHTD.shape[2], key_BKSD.shape[2]
    if query_bounds_L is None or key_bounds_L is None or limits is None:
        at = torch.arange(rows + 1, dtype=torch.int32, device=query_BHTD.device)
        return at * queries, at * keys, queries, keys
    documents, most_queries, most_keys = limits.tolist()
    ends = slice(0, documents + 1)
    return query_bounds_L[ends], key_bounds_L[ends], most_queries, most_keys


def _flatten(x_BHTD: Tensor) -> Tensor:
    """Return [B T, H, D], the channels of a head one after another."""
    flat = x_BHTD.transpose(1, 2).flatten(0, 1)
    return flat if flat.stride(-1) == 1 else flat.contiguous()


def _unflatten(flat: Tensor, rows: int) -> Tensor:
    """Return [B, H, T, D] of [B T, H, D]."""
    return flat.view(rows, -1, *flat.shape[1:]).transpose(1, 2)


def _limit(reach: tuple[int, int], most: int) -> dict[str, Any]:
    """Return how far queries see, for documents of at most `most` keys: as far as all of them is
    to the kernel no window, which is faster."""
    left, right = (-1 if places >= most - 1 else places for places in reach)
    right = 0 if reach[1] == 0 else right
    return {
        "is_causal": (left, right) == (-1, 0),
        "window_size_left": left,
        "window_size_right": right,
    }


@library.custom_op("trainrig::varlen_attention", mutates_args=())
def _attention(
    query_BHTD: Tensor,
    key_BKSD: Tensor,
    value_BKSD: Tensor,
    query_bounds_L: Tensor | None,
    key_bounds_L: Tensor | None,
    limits: Tensor | None,
    scale: float,
    left: int,
    right: int,
) -> tuple[Tensor, Tensor]:
    """Return what is seen, [B, H, T, D], and the sums that the backward pass takes, [H, B T]."""
    bounds = query_bounds_L, key_bounds_L, limits
    documents = _prepare(query_BHTD, key_BKSD, bounds)
    window = _limit((left, right), documents[3])
    parts = (_flatten(each) for each in (query_BHTD, key_BKSD, value_BKSD))
    causal = window.pop("is_causal")
    seen, sums, *_ = _kernel(*parts, *documents, 0.0, causal, False, scale=scale, **window)
    return _unflatten(seen, len(query_BHTD)), sums


@_attention.register_fake
def _attention_shapes(
    query_BHTD: Tensor,
    key_BKSD: Tensor,
    value_BKSD: Tensor,
    query_bounds_L: Tensor | None,
    key_bounds_L: Tensor | None,
    limits: Tensor | None,
    scale: float,
    left: int,
    right: int,
) -> tuple[Tensor, Tensor]:
    rows, heads, queries, _ = query_BHTD.shape
    sums = query_BHTD.new_empty((heads, rows * queries), dtype=torch.float32)
    return allocate_by_place(query_BHTD), sums


@library.custom_op("trainrig::varlen_attention_backward", mutates_args=())
def _attention_backward(
    gradient_BHTD: Tensor,
    seen_BHTD: Tensor,
    sums: Tensor,
    query_BHTD: Tensor,
    key_BKSD: Tensor,
    value_BKSD: Tensor,
    query_bounds_L: Tensor | None,
    key_bounds_L: Tensor | None,
    limits: Tensor | None,
    scale: float,
    left: int,
    right: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of queries, keys and values."""
    bounds = query_bounds_L, key_bounds_L, limits
    documents = _prepare(query_BHTD, key_BKSD, bounds)
    window = _limit((left, right), documents[3])
    saved = gradient_BHTD, query_BHTD, key_BKSD, value_BKSD, seen_BHTD
    parts = (_flatten(each) for each in saved)
    state = torch.zeros(2, dtype=torch.uint64, device=query_BHTD.device)  # nothing is dropped
    unused = torch.empty(0, device=query_BHTD.device)
    drawn = 0.0, window.pop("is_causal"), state, unused
    found = _kernel_backward(*parts, sums, *documents, *drawn, scale=scale, **window)
    of_query, of_key, of_value = (_unflatten(each, len(query_BHTD)) for each in found)
    return of_query, of_key, of_value


@_attention_backward.register_fake
def _attention_backward_shapes(
    gradient_BHTD: Tensor,
    seen_BHTD: Tensor,
    sums: Tensor,
    query_BHTD: Tensor,
    key_BKSD: Tensor,
    value_BKSD: Tensor,
    query_bounds_L: Tensor | None,
    key_bounds_L: Tensor | None,
    limits: Tensor | None,
    scale: float,
    left: int,
    right: int,
) -> tuple[Tensor, Tensor, Tensor]:
    return (
        allocate_by_place(query_BHTD),
        allocate_by_place(key_BKSD),
        allocate_by_place(value_BKSD),
    )


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    query, key, value, query_bounds, key_bounds, limits, *ctx.settings = inputs
    ctx.save_for_backward(*output, query, key, value, query_bounds, key_bounds, limits)


def _differentiate(ctx: Any, gradient: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    found = _attention_backward(gradient, *ctx.saved_tensors, *ctx.settings)
    return *found, *[None] * 6


_attention.register_autograd(_differentiate, setup_context=_save)

# As recomputation knows it.
OPERATOR = torch.ops.trainrig.varlen_attention.default
