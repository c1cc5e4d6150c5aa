"""Attention in blocks of queries, for features that torch's own kernels cannot differentiate.

Sliding windows (only keys near a block are read), soft-capped logits, attention sinks, linear
biases and documents within a row, forward and backward, by plain products on any device
(attention_blocks.py).

Shapes: B batch, T queries (the last of S positions), S keys, H query heads, K key and value heads,
D channels of one head.
"""

from typing import Any

import torch
from torch import Tensor, library

from trainrig.models.kernels import attention_blocks
from trainrig.models.kernels.kernel_support import allocate_by_place, allocate_gradients


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
    """Return the attention output of each query, [B, H, T, D].

    A query attends to itself and to earlier positions of its document, of these to the last
    `window`. Without `causal`, it also attends to later positions, and the window reaches (`window`
    - 1) / 2 to either side. Positions of a document are contiguous.

    Logits are `scale` times the products; then `cap` * tanh(x / `cap`) if set; then minus slope
    times distance. `sinks_H` are the logits of an extra key for each head whose value is 0.
    """
    inputs = query_BHTD, key_BKSD, value_BKSD, documents_BS, slopes_H, sinks_H
    seen: Tensor = _attention(*inputs, scale, window, cap, causal)[0]
    return seen


def attend(
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
    """Return the attention output, [B, H, T, D], and the log-sum of exponentials, [B, H, T]."""
    found = seen_BHTD, sums_BHT = _allocate_results(query_BHTD)
    settings = slopes_H, scale, window, cap, causal
    for row in attention_blocks.split_batch(documents_BS, query_BHTD):
        documents = None if documents_BS is None else documents_BS[row]
        blocks = attention_blocks.Blocks(query_BHTD[row], key_BKSD[row], documents, *settings)
        attention_blocks.look(blocks, value_BKSD[row], sinks_H, seen_BHTD[row], sums_BHT[row])
    return found


def attend_backward(
    gradient_BHTD: Tensor,
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
    """Return the gradients of queries, keys, values and sinks (empty without sinks)."""
    mean_BHT = attention_blocks.compute_mean_gradients(gradient_BHTD, seen_BHTD)
    of_sinks = sums_BHT.new_empty(0)
    if sinks_H is not None:
        of_sinks = attention_blocks.differentiate_sinks(sinks_H, sums_BHT, mean_BHT)
    found = of_query, of_key, of_value = allocate_gradients(query_BHTD, key_BKSD, value_BKSD)
    settings = slopes_H, scale, window, cap, causal
    for row in attention_blocks.split_batch(documents_BS, query_BHTD):
        documents = None if documents_BS is None else documents_BS[row]
        blocks = attention_blocks.Blocks(query_BHTD[row], key_BKSD[row], documents, *settings)
        parts = value_BKSD[row], gradient_BHTD[row], mean_BHT[row], sums_BHT[row]
        of_query[row], of_key[row], of_value[row] = attention_blocks.differentiate(blocks, *parts)
    return *found, of_sinks


def _allocate_results(query_BHTD: Tensor) -> tuple[Tensor, Tensor]:
    sums_BHT = query_BHTD.new_empty(query_BHTD.shape[:-1], dtype=torch.float32)
    return allocate_by_place(query_BHTD), sums_BHT


_attention = library.custom_op("trainrig::blocked_attention", mutates_args=())(attend)


@_attention.register_fake
def _attention_shapes(query_BHTD: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    return _allocate_results(query_BHTD)


_attention_backward = library.custom_op("trainrig::blocked_attention_backward", mutates_args=())(
    attend_backward
)


@_attention_backward.register_fake
def _attention_backward_shapes(*given: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    _, _, sums, query, key, value, _, _, sinks, *_ = given
    of_sinks = sums.new_empty(0) if sinks is None else torch.empty_like(sinks)
    return *allocate_gradients(query, key, value), of_sinks


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    query, key, value, documents, slopes, sinks, *ctx.settings = inputs
    ctx.save_for_backward(output[0], output[1], query, key, value, documents, slopes, sinks)


def _differentiate(ctx: Any, gradient: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    saved = ctx.saved_tensors  # saved tensors can be unpacked only one time under recomputation
    *gradients, of_sinks = _attention_backward(gradient, *saved, *ctx.settings)
    return *gradients, None, None, None if saved[-1] is None else of_sinks, *[None] * 4


_attention.register_autograd(_differentiate, setup_context=_save)

# The operator, as activation recomputation identifies it.
OPERATOR = torch.ops.trainrig.blocked_attention.default
