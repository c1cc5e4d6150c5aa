"""Attention within documents and windows on a GPU, by torch's variable-length FlashAttention-2.

The kernel of `torch.nn.attention.varlen.varlen_attn` is called like that function calls it, through
the operators below it: their signatures are the same in torch 2.11 to 2.13, and all of these accept
fewer key heads than query heads. The backward pass adds in a fixed order under
`torch.use_deterministic_algorithms`, also for variable lengths. It does not differentiate the sums
of exponentials, so sinks are not supported.

The kernel takes the bounds of all documents as a tensor of variable size, and the longest length as
a Python number. The custom operator here takes bounds padded to a fixed size and both numbers in a
host tensor, so that a compiled layer is the same graph whatever the documents.

Shapes: B rows, T queries (the last of S places), S keys, H query heads, K key heads, D channels of
one head; N documents of all rows, at most L = B S + 1 bounds.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, library

from trainrig.models.kernels.kernel_support import allocate_by_place, allocate_gradients
from trainrig.sync_free_reads import find_on_host

_kernel = torch.ops.aten._flash_attention_forward
_kernel_backward = torch.ops.aten._flash_attention_backward


@dataclass(frozen=True)
class VarlenRows:
    """Bounds of the documents in concatenated rows."""

    # All three are None where each row is one document.
    # Int32 bounds among the queries; the last one is repeated as padding.
    query_bounds_L: Tensor | None
    key_bounds_L: Tensor | None  # int32 bounds among the keys, padded in the same way
    # Int64 [3] on the host: number of documents, most queries and most keys of a document.
    limits: Tensor | None
    queries: int  # number of queries in a row
    keys: int  # number of keys in a row

    def fits(self, query_BHTD: Tensor, key_BKSD: Tensor) -> bool:
        """Return whether these rows have the numbers of queries and keys of the given tensors."""
        return (query_BHTD.shape[2], key_BKSD.shape[2]) == (self.queries, self.keys)


def find_varlen_rows(documents_BS: Tensor, queries: int) -> VarlenRows:
    """Return the bounds of the documents of rows whose last `queries` places are queries.

    Places of a document are contiguous. Waits for the device unless a copy of the documents is on
    the host (trainrig/sync_free_reads.py).
    """
    on_host = find_on_host(documents_BS)
    known = documents_BS.cpu() if on_host is None else on_host
    rows, seen = known.shape
    begins_BS = torch.ones_like(known, dtype=torch.bool)
    begins_BS[:, 1:] = known[:, 1:] != known[:, :-1]
    key_bounds = torch.cat((begins_BS.flatten().nonzero().flatten(), torch.tensor([rows * seen])))
    # The queries of a document are its places among the last `queries` ones of its row.
    row = key_bounds // seen
    place = key_bounds % seen
    query_bounds = row * queries + (place - (seen - queries)).clamp(min=0)
    lengths = query_bounds.diff(), key_bounds.diff()
    limits = [len(key_bounds) - 1, *(int(length.max()) for length in lengths)]
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
    """Return the attention output of each query within its document, [B, H, T, D].

    With `causal`, a query attends to itself and to earlier places, of these to the last `window`.
    Otherwise it attends to both sides, and the window is centred on it.
    """
    left, right = find_window_reach(window, causal)
    bounds = rows.query_bounds_L, rows.key_bounds_L, rows.limits
    given = query_BHTD, key_BKSD, value_BKSD, *bounds
    seen: Tensor = _attention(*given, scale, left, right)[0]
    return seen


def find_window_reach(window: int | None, causal: bool) -> tuple[int, int]:
    """Return how many places before and after itself a query attends to; -1 means all."""
    if window is None:
        return -1, 0 if causal else -1
    if causal:
        return window - 1, 0
    return (window - 1) // 2, (window - 1) // 2


def _prepare(
    query_BHTD: Tensor, key_BKSD: Tensor, bounds: tuple[Tensor | None, Tensor | None, Tensor | None]
) -> tuple[Tensor, Tensor, int, int]:
    """Return the kernel's arguments for the documents: bounds, and most queries and keys of one."""
    query_bounds_L, key_bounds_L, limits = bounds
    rows = query_BHTD.shape[0]
    queries = query_BHTD.shape[2]
    keys = key_BKSD.shape[2]
    if query_bounds_L is None or key_bounds_L is None or limits is None:
        at = torch.arange(rows + 1, dtype=torch.int32, device=query_BHTD.device)
        return at * queries, at * keys, queries, keys
    documents, most_queries, most_keys = limits.tolist()
    ends = slice(0, documents + 1)
    return query_bounds_L[ends], key_bounds_L[ends], most_queries, most_keys


def _flatten(x_BHTD: Tensor) -> Tensor:
    """Return `x_BHTD` as [B T, H, D], with the channels of a head contiguous."""
    flat = x_BHTD.transpose(1, 2).flatten(0, 1)
    return flat if flat.stride(-1) == 1 else flat.contiguous()


def _unflatten(flat: Tensor, rows: int) -> Tensor:
    """Return `flat` [B T, H, D] as [B, H, T, D]."""
    return flat.view(rows, -1, *flat.shape[1:]).transpose(1, 2)


def _limit(reach: tuple[int, int], most: int) -> dict[str, Any]:
    """Return the kernel's window arguments, for documents of at most `most` keys.

    A window that covers all documents is given as no window, which is faster.
    """
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
    """Return the attention output, [B, H, T, D], and log-sums for the backward pass, [H, B T]."""
    bounds = query_bounds_L, key_bounds_L, limits
    documents = _prepare(query_BHTD, key_BKSD, bounds)
    window = _limit((left, right), documents[3])
    parts = (_flatten(part) for part in (query_BHTD, key_BKSD, value_BKSD))
    causal = window.pop("is_causal")
    seen, sums, *_ = _kernel(*parts, *documents, 0.0, causal, False, scale=scale, **window)
    return _unflatten(seen, len(query_BHTD)), sums


@_attention.register_fake
def _attention_shapes(query_BHTD: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
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
    parts = (_flatten(part) for part in saved)
    state = torch.zeros(2, dtype=torch.uint64, device=query_BHTD.device)  # no dropout
    unused = torch.empty(0, device=query_BHTD.device)
    drawn = 0.0, window.pop("is_causal"), state, unused
    found = _kernel_backward(*parts, sums, *documents, *drawn, scale=scale, **window)
    of_query, of_key, of_value = (_unflatten(gradient, len(query_BHTD)) for gradient in found)
    return of_query, of_key, of_value


@_attention_backward.register_fake
def _attention_backward_shapes(*given: Any) -> tuple[Tensor, Tensor, Tensor]:
    _, _, _, query, key, value, *_ = given
    return allocate_gradients(query, key, value)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    query, key, value, query_bounds, key_bounds, limits, *ctx.settings = inputs
    ctx.save_for_backward(*output, query, key, value, query_bounds, key_bounds, limits)


def _differentiate(ctx: Any, gradient: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    found = _attention_backward(gradient, *ctx.saved_tensors, *ctx.settings)
    return *found, *[None] * 6


_attention.register_autograd(_differentiate, setup_context=_save)

# The operator, as activation recomputation identifies it.
OPERATOR = torch.ops.trainrig.varlen_attention.default
