"""Attention by trainrig's Triton kernel, as a custom operator, for rows with known ranges of keys.

The range of keys of each query (kernel_support.py) is computed one time for all layers of a kind,
forward and backward. As a custom operator it has a name in torch, so layers are compiled around it
and recomputation can keep its output. The kernel is in attention_kernel.py.

Shapes: B rows, T queries (the last of S places), S keys, H query heads, K key heads, D channels of
one head; ranges as in kernel_support.py.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, library

from trainrig.models.kernels.attention_blocks import compute_mean_gradients, differentiate_sinks
from trainrig.models.kernels.kernel_support import Reach, allocate_by_place, allocate_gradients


@dataclass(frozen=True)
class ReachRows:
    """Ranges of keys that the queries of rows attend to, for the Triton kernel."""

    reach: Reach
    queries: int
    keys: int

    def fits(self, query_BHTD: Tensor, key_BKSD: Tensor) -> bool:
        """Return whether these rows have the numbers of queries and keys of the given tensors."""
        return (query_BHTD.shape[2], key_BKSD.shape[2]) == (self.queries, self.keys)


def reach_attention(
    query_BHTD: Tensor,
    key_BKSD: Tensor,
    value_BKSD: Tensor,
    rows: ReachRows,
    *,
    scale: float,
    cap: float | None = None,
    slopes_H: Tensor | None = None,
    sinks_H: Tensor | None = None,
) -> Tensor:
    """Return the attention output of each query over its range of keys, [B, H, T, D].

    `blocked_attention` describes the arguments.
    """
    inputs = query_BHTD, key_BKSD, value_BKSD, *rows.reach, slopes_H, sinks_H
    seen: Tensor = _attention(*inputs, scale, cap)[0]
    return seen


def _allocate_results(query_BHTD: Tensor) -> tuple[Tensor, Tensor]:
    sums_BHT = query_BHTD.new_empty(query_BHTD.shape[:-1], dtype=torch.float32)
    return allocate_by_place(query_BHTD), sums_BHT


@library.custom_op("trainrig::reach_attention", mutates_args=())
def _attention(
    query_BHTD: Tensor,
    key_BKSD: Tensor,
    value_BKSD: Tensor,
    first_key_BT: Tensor,
    last_key_BT: Tensor,
    first_query_BN: Tensor,
    last_query_BN: Tensor,
    slopes_H: Tensor | None,
    sinks_H: Tensor | None,
    scale: float,
    cap: float | None,
) -> tuple[Tensor, Tensor]:
    """Return the attention output, [B, H, T, D], and the log-sum of exponentials, [B, H, T]."""
    from trainrig.models.kernels import attention_kernel

    found = _allocate_results(query_BHTD)
    reach = Reach(first_key_BT, last_key_BT, first_query_BN, last_query_BN)
    past = key_BKSD.shape[2] - query_BHTD.shape[2]
    given = query_BHTD, key_BKSD, value_BKSD, reach, past
    attention_kernel.attend(*given, slopes_H, sinks_H, scale, cap, found)
    return found


@_attention.register_fake
def _attention_shapes(query_BHTD: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    return _allocate_results(query_BHTD)


@library.custom_op("trainrig::reach_attention_backward", mutates_args=())
def _attention_backward(
    gradient_BHTD: Tensor,
    seen_BHTD: Tensor,
    sums_BHT: Tensor,
    query_BHTD: Tensor,
    key_BKSD: Tensor,
    value_BKSD: Tensor,
    first_key_BT: Tensor,
    last_key_BT: Tensor,
    first_query_BN: Tensor,
    last_query_BN: Tensor,
    slopes_H: Tensor | None,
    sinks_H: Tensor | None,
    scale: float,
    cap: float | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of queries, keys, values and sinks (empty without sinks)."""
    from trainrig.models.kernels import attention_kernel

    mean_BHT = compute_mean_gradients(gradient_BHTD, seen_BHTD)
    of_sinks = sums_BHT.new_empty(0)
    if sinks_H is not None:
        of_sinks = differentiate_sinks(sinks_H, sums_BHT, mean_BHT)
    found = allocate_gradients(query_BHTD, key_BKSD, value_BKSD)
    reach = Reach(first_key_BT, last_key_BT, first_query_BN, last_query_BN)
    past = key_BKSD.shape[2] - query_BHTD.shape[2]
    saved = gradient_BHTD, mean_BHT, sums_BHT, query_BHTD, key_BKSD, value_BKSD
    attention_kernel.differentiate(*saved, reach, past, slopes_H, scale, cap, found)
    return *found, of_sinks


@_attention_backward.register_fake
def _attention_backward_shapes(*given: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    _, _, sums, query, key, value, _, _, _, _, _, sinks, *_ = given
    of_sinks = sums.new_empty(0) if sinks is None else torch.empty_like(sinks)
    return *allocate_gradients(query, key, value), of_sinks


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *given, ctx.scale, ctx.cap = inputs
    ctx.save_for_backward(*output, *given)


def _differentiate(ctx: Any, gradient: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    saved = ctx.saved_tensors  # saved tensors can be unpacked only one time under recomputation
    *gradients, of_sinks = _attention_backward(gradient, *saved, ctx.scale, ctx.cap)
    return *gradients, *[None] * 5, None if saved[-1] is None else of_sinks, None, None


_attention.register_autograd(_differentiate, setup_context=_save)

# The operator, as activation recomputation identifies it.
OPERATOR = torch.ops.trainrig.reach_attention.default
