"""Preparation of rows for an attention kernel, done one time for all global or all local layers.

The *reach* of a query is the range of keys that it attends to. It follows from the document, the
window and causality.

Shapes: B rows, S positions with keys, T queries (the last T of the S positions), H query heads, K
key heads, D channels of one head.
"""

from typing import Any, assert_never

import torch
from torch import Tensor

from trainrig.models.kernels.flex_rows import FlexRows, find_flex_rows, flex_rows_attention
from trainrig.models.kernels.kernel_choice import Kernel
from trainrig.models.kernels.kernel_support import Reach, find_document_ends, find_reach
from trainrig.models.kernels.reach_attention import ReachRows, reach_attention
from trainrig.models.kernels.varlen_attention import VarlenRows, find_varlen_rows, varlen_attention

PreparedRows = VarlenRows | FlexRows | ReachRows


def prepare_rows(
    kernel: Kernel | None,
    documents_BS: Tensor | None,
    sizes: tuple[int, int],
    device: torch.device,
    window: int | None,
    causal: bool,
) -> PreparedRows | None:
    """Return what `kernel` needs to know of rows, or None if it needs nothing.

    `sizes` are T and S. `kernel` is None where a mask or torch's own attention is used, and "plain"
    for plain products in blocks.
    """
    queries, keys = sizes
    if kernel is None or kernel == "plain":
        return None
    if kernel == "flash":
        if documents_BS is None:
            return VarlenRows(None, None, None, queries, keys)
        return find_varlen_rows(documents_BS, queries)
    reach = _find_reach(documents_BS, sizes, device, window, causal)
    if kernel == "flex":
        return find_flex_rows(reach, queries, keys)
    if kernel == "triton":
        return ReachRows(reach, queries, keys)
    assert_never(kernel)


def _find_reach(
    documents_BS: Tensor | None,
    sizes: tuple[int, int],
    device: torch.device,
    window: int | None,
    causal: bool,
) -> Reach:
    """Return the range of keys of each query, and the range of queries of each key."""
    queries, keys = sizes
    ends = find_document_ends(documents_BS, keys, device)
    return find_reach(ends, range(keys - queries, keys), range(keys), window, causal)


def attend_prepared(
    query_BHTD: Tensor,
    key_BKSD: Tensor,
    value_BKSD: Tensor,
    rows: PreparedRows,
    *,
    scale: float,
    window: int | None = None,
    causal: bool = True,
    cap: float | None = None,
    slopes_H: Tensor | None = None,
    sinks_H: Tensor | None = None,
) -> Tensor:
    """Return the attention output of each query, [B, H, T, D], by the kernel of `rows`.

    Arguments as in `blocked_attention`: `cap` limits logits by tanh, `slopes_H` are ALiBi's, and
    `sinks_H` are logits of an extra key. The reach in `rows` already contains `window` and
    `causal`; only FlashAttention takes them as arguments.
    """
    parts = query_BHTD, key_BKSD, value_BKSD
    if isinstance(rows, VarlenRows):
        assert cap is None and slopes_H is None and sinks_H is None, (
            "find_obstacle refuses these for VarlenRows"
        )
        return varlen_attention(*parts, rows, scale=scale, window=window, causal=causal)
    rest: dict[str, Any] = {"cap": cap, "slopes_H": slopes_H, "sinks_H": sinks_H}
    if isinstance(rows, FlexRows):
        return flex_rows_attention(*parts, rows, scale=scale, **rest)
    return reach_attention(*parts, rows, scale=scale, **rest)
