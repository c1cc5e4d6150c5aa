"""Preparation of rows for an attention kernel, done one time for all layers of a kind.

Shapes: B rows, T queries (the last of S places), S keys, H query heads, K key heads, D channels of
one head.
"""

from typing import Any, assert_never

import torch
from torch import Tensor

from trainrig.models.kernels.choice import Kernel
from trainrig.models.kernels.flex_rows import FlexRows, find_flex_rows, flex_rows_attention
from trainrig.models.kernels.reach import Reach, find_document_ends, find_reach
from trainrig.models.kernels.reach_attention import ReachRows, reach_attention
from trainrig.models.kernels.varlen_attention import (
    VarlenRows,
    find_varlen_rows,
    varlen_attention,
)

PreparedRows = VarlenRows | FlexRows | ReachRows


def prepare_rows(
    kernel: Kernel | None,
    documents_BS: Tensor | None,
    sizes: tuple[int, int],
    device: torch.device,
    window: int | None,
    causal: bool,
) -> PreparedRows | None:
    """Return what `kernel` needs to know of rows of `sizes` (queries, keys), or None if nothing.

    The queries are the last places.
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

    `blocked_attention` describes the arguments.
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
