"""Attention on a CPU: within documents of packed rows, and with a learnt bias on the logits.

Documents of a packed row are computed separately.

A mask over whole rows costs the square of the row length, most of which it hides; here the cost is
the sum of the squares of the document lengths. torch's CPU kernel is called for each long document,
and for several short neighbours together under a small mask. The calls and their shapes depend only
on the documents of the rows. On a GPU, other kernels are used (kernel_choice.py).

torch's CPU kernels compute no gradient for such a bias, so torch falls back on plain products, with
a softmax that searches for fully masked rows and a separate pass for the sum. Here the bias is
added inside the product, and no search is made. The results are equal within rounding, and
bit-identical on some processors.

Shapes: B rows, T places of a row, H query heads, K key and value heads, D channels of one head, t
places of one call.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, library

from trainrig.models.architecture.attention_settings import TOGETHER
from trainrig.models.kernels.kernel_support import allocate_by_place, allocate_gradients


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


_kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_kernel_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


def document_attention(
    query_BHTD: Tensor,
    key_BKTD: Tensor,
    value_BKTD: Tensor,
    documents_BT: Tensor,
    *,
    scale: float,
    causal: bool = True,
) -> Tensor:
    """Return the attention output of each query within its document, [B, H, T, D].

    With `causal`, a query attends to itself and earlier places, otherwise to all of its document.
    The places of a document are contiguous.
    """
    inputs = query_BHTD, key_BKTD, value_BKTD, documents_BT
    seen: Tensor = _attention(*inputs, scale, causal)[0]
    return seen


def find_document_bounds(documents_BT: Tensor) -> list[list[int]]:
    """Return for each row the places at which documents begin, followed by T."""
    rows, places = documents_BT.shape
    bounds = [[0] for _ in range(rows)]
    changes = (documents_BT[:, 1:] != documents_BT[:, :-1]).nonzero()
    for row, place in changes.tolist():
        bounds[row].append(place + 1)
    for row in bounds:
        row.append(places)
    return bounds


def reads_documents(documents_BS: Tensor, new: int, dtype: torch.dtype) -> bool:
    """Return whether computing the last `new` queries by document beats a mask of whole rows."""
    seen = documents_BS.shape[1]
    return documents_BS.device.type == "cpu" and new == seen > TOGETHER // dtype.itemsize


def split_segments(bounds: Sequence[int], together: int) -> Iterator[tuple[slice, bool]]:
    """Yield the places of each kernel call for a row, and whether they are one document.

    Otherwise they are several short documents with at most `together` places in all.
    """
    begin = bounds[0]
    documents = 0
    for low, high in itertools.pairwise(bounds):
        if documents and high - begin > together:
            yield slice(begin, low), documents == 1
            begin = low
            documents = 0
        documents += 1
    yield slice(begin, bounds[-1]), documents == 1


def attend(
    query_BHTD: Tensor,
    key_BKTD: Tensor,
    value_BKTD: Tensor,
    documents_BT: Tensor,
    scale: float,
    causal: bool,
) -> tuple[Tensor, Tensor]:
    """Return the attention output, [B, H, T, D], and the log-sum of exponentials, [B, H, T]."""
    seen_BHTD, sums_BHT = _allocate_results(query_BHTD)
    for row, places, mask in _plan_calls(documents_BT, query_BHTD.dtype, causal):
        parts = (part[row, :, places] for part in (query_BHTD, key_BKTD, value_BKTD))
        seen, sums = _kernel(*parts, is_causal=causal and mask is None, attn_mask=mask, scale=scale)
        seen_BHTD[row, :, places] = seen
        sums_BHT[row, :, places] = sums
    return seen_BHTD, sums_BHT


def differentiate(
    gradient_BHTD: Tensor,
    seen_BHTD: Tensor,
    sums_BHT: Tensor,
    query_BHTD: Tensor,
    key_BKTD: Tensor,
    value_BKTD: Tensor,
    documents_BT: Tensor,
    scale: float,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of queries, keys and values."""
    found = allocate_gradients(query_BHTD, key_BKTD, value_BKTD)
    saved = gradient_BHTD, query_BHTD, key_BKTD, value_BKTD, seen_BHTD, sums_BHT
    for row, places, mask in _plan_calls(documents_BT, query_BHTD.dtype, causal):
        parts = (part[row, :, places] for part in saved)
        gradients = _kernel_backward(
            *parts, 0.0, causal and mask is None, attn_mask=mask, scale=scale
        )
        for whole, part in zip(found, gradients, strict=True):
            whole[row, :, places] = part
    return found


def _plan_calls(
    documents_BT: Tensor, dtype: torch.dtype, causal: bool
) -> Iterator[tuple[slice, slice, Tensor | None]]:
    """Yield the row and the places of each kernel call, and a mask if it has several documents."""
    for number, bounds in enumerate(find_document_bounds(documents_BT)):
        row = slice(number, number + 1)
        for places, whole in split_segments(bounds, TOGETHER // dtype.itemsize):
            yield (
                row,
                places,
                None if whole else _make_mask(documents_BT[number, places], dtype, causal),
            )


def _make_mask(documents_t: Tensor, dtype: torch.dtype, causal: bool) -> Tensor:
    """Return what to add to the logits of the documents, [1, 1, t, t]."""
    together_tt = documents_t[:, None] == documents_t[None, :]
    if causal:
        together_tt = together_tt.tril()
    added_tt = torch.zeros(together_tt.shape, dtype=dtype).masked_fill_(~together_tt, -torch.inf)
    return added_tt[None, None]


def _allocate_results(query_BHTD: Tensor) -> tuple[Tensor, Tensor]:
    """Return empty tensors for the output and the log-sums, laid out as torch's kernel does.

    The heads of a place are contiguous, which suits the projection that follows.
    """
    wide = torch.float32 if query_BHTD.dtype != torch.float64 else torch.float64
    batch, heads, places, _ = query_BHTD.shape
    sums_BTH = query_BHTD.new_empty((batch, places, heads), dtype=wide)
    return allocate_by_place(query_BHTD), sums_BTH.transpose(1, 2)


_attention = library.custom_op("trainrig::document_attention", mutates_args=())(attend)


@_attention.register_fake
def _attention_shapes(query_BHTD: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    return _allocate_results(query_BHTD)


_attention_backward = library.custom_op("trainrig::document_attention_backward", mutates_args=())(
    differentiate
)


@_attention_backward.register_fake
def _attention_backward_shapes(*given: Any) -> tuple[Tensor, Tensor, Tensor]:
    _, _, _, query, key, value, *_ = given
    return allocate_gradients(query, key, value)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    query, key, value, documents, *ctx.settings = inputs
    ctx.save_for_backward(*output, query, key, value, documents)


def _differentiate(ctx: Any, gradient: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    found = _attention_backward(gradient, *ctx.saved_tensors, *ctx.settings)
    return *found, None, None, None


_attention.register_autograd(_differentiate, setup_context=_save)

# The operator, as activation recomputation identifies it.
OPERATOR = torch.ops.trainrig.document_attention.default
