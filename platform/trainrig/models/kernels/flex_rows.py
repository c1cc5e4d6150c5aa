"""Attention on a GPU by torch's compiled flex_attention, with soft caps, sinks and ALiBi.

The keys that a query attends to are a range of its row (kernel_support.py), so one mask serves
documents, windows and causality, and whole blocks outside the range are skipped. Soft caps and
ALiBi change logits in the kernel. A sink takes its share of the softmax afterwards, through the
log-sum of exponentials, which torch differentiates here. The backward pass adds without atomic
operations, because no tensor that changes logits is learnt.

Shapes: B rows, or 1 where all are alike; T queries, S keys, H query heads, K key heads, D channels
of one head; P blocks of queries, Q blocks of keys; b queries of a block.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import flex_attention as torch_flex

from trainrig.errors import ConfigError
from trainrig.models.kernels.kernel_support import Reach

BLOCK = 128  # queries and keys of a block, flex_attention's default
SHAPES = 64  # most shapes of rows that one process compiles training kernels for

Where = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class FlexRows:
    """Ranges of keys that the queries of rows attend to, as flex_attention's block mask."""

    blocks: torch_flex.BlockMask
    queries: int
    keys: int

    def fits(self, query_BHTD: Tensor, key_BKSD: Tensor) -> bool:
        """Return whether these rows have the numbers of queries and keys of the given tensors."""
        return (query_BHTD.shape[2], key_BKSD.shape[2]) == (self.queries, self.keys)


def find_flex_rows(reach: Reach, queries: int, keys: int) -> FlexRows:
    """Return the blocks of keys that each block of `queries` attends to, in part or entirely.

    They are found on the device from the ranges alone, without a mask of whole rows and without
    waiting.
    """
    first_BT = reach.first_key_BT
    last_BT = reach.last_key_BT
    rows = len(first_BT)
    device = first_BT.device
    first_BPb = _split_blocks(first_BT)
    last_BPb = _split_blocks(last_BT)
    # The range of a query that attends to nothing ends before it begins, and must widen no block.
    sees_BPb = first_BPb <= last_BPb
    low_BP = first_BPb.where(sees_BPb, keys).amin(-1)
    high_BP = last_BPb.where(sees_BPb, -1).amax(-1)
    begin_Q = torch.arange(0, keys, BLOCK, dtype=torch.int32, device=device)
    end_Q = (begin_Q + BLOCK).clamp(max=keys) - 1
    some_BPQ = (begin_Q <= high_BP[..., None]) & (end_Q >= low_BP[..., None])
    inside = (first_BPb.amax(-1)[..., None] <= begin_Q) & (last_BPb.amin(-1)[..., None] >= end_Q)
    # The last blocks may be incomplete and then need the mask.
    begin_P1 = torch.arange(0, queries, BLOCK, device=device)[:, None]
    is_whole_PQ = (begin_P1 + BLOCK <= queries) & (begin_Q + BLOCK <= keys)
    all_BPQ = some_BPQ & inside & is_whole_PQ
    part_BPQ = some_BPQ & ~all_BPQ
    blocks = torch_flex.BlockMask.from_kv_blocks(
        *_order_blocks(part_BPQ),
        *_order_blocks(all_BPQ),
        BLOCK_SIZE=BLOCK,
        mask_mod=_make_mask(first_BT, last_BT, rows > 1),
        seq_lengths=(queries, keys),
    )
    return FlexRows(blocks, queries, keys)


def flex_rows_attention(
    query_BHTD: Tensor,
    key_BKSD: Tensor,
    value_BKSD: Tensor,
    rows: FlexRows,
    *,
    scale: float,
    cap: float | None = None,
    slopes_H: Tensor | None = None,
    sinks_H: Tensor | None = None,
) -> Tensor:
    """Return the attention output of each query over its range of keys, [B, H, T, D].

    Logits are `scale` times the products; then `cap` * tanh(x / `cap`) if set; then minus slope
    times distance. `sinks_H` are the logits of an extra key for each head whose value is 0.
    """
    settings: dict[str, Any] = {"scale": scale, "block_mask": rows.blocks}
    settings["enable_gqa"] = query_BHTD.shape[1] != key_BKSD.shape[1]
    if cap is not None or slopes_H is not None:
        past = rows.keys - rows.queries
        settings["score_mod"] = _make_change(cap, slopes_H, past, query_BHTD.device)
    if sinks_H is None:
        seen: Tensor = _run(query_BHTD, key_BKSD, value_BKSD, **settings)
        return seen
    settings["return_aux"] = torch_flex.AuxRequest(lse=True)
    seen, sums = _run(query_BHTD, key_BKSD, value_BKSD, **settings)
    kept_BHT = torch.sigmoid(sums.lse - sinks_H.float()[:, None])
    return (seen * kept_BHT[..., None]).to(seen.dtype)


def _run(query: Tensor, key: Tensor, value: Tensor, **settings: Any) -> Any:
    """Call flex_attention, compiled on a GPU, where the uncompiled one would hold all logits."""
    if query.device.type != "cuda" or torch.compiler.is_compiling():
        plain: Callable[..., Any] = torch_flex.flex_attention
        return plain(query, key, value, **settings)
    from torch._dynamo.exc import FailOnRecompileLimitHit

    try:
        # The scale is a constant of the model, so it must not become a symbol of the graph.
        with torch._dynamo.config.patch(recompile_limit=SHAPES, specialize_float=True):
            return _compile(torch.is_grad_enabled())(query, key, value, **settings)
    except FailOnRecompileLimitHit:
        raise ConfigError(
            "training.attention.kernel: flex_attention would be compiled for more than "
            f"{SHAPES} shapes of rows, the limit of one process; set it to 'plain', or pack rows "
            "to one length"
        ) from None


@functools.cache
def _compile(trains: bool) -> Callable[..., Any]:
    """Return compiled flex_attention: for training one graph for each shape, otherwise one for all.

    With a graph for each shape, no bit of the results depends on which shape came first.
    """
    return torch.compile(torch_flex.flex_attention, fullgraph=True, dynamic=not trains)


def _split_blocks(places_BT: Tensor) -> Tensor:
    """Return `places_BT` as [B, P, BLOCK], padded at the end with the last place."""
    missing = -places_BT.shape[1] % BLOCK
    if missing:
        last = places_BT[:, -1:].expand(-1, missing)
        places_BT = torch.cat((places_BT, last), dim=1)
    return places_BT.reshape(len(places_BT), -1, BLOCK)


def _order_blocks(chosen_BPQ: Tensor) -> tuple[Tensor, Tensor]:
    """Return the number of chosen blocks, [B, 1, P], and their indices, chosen ones first."""
    counts_BP = chosen_BPQ.sum(-1, dtype=torch.int32)
    order_BPQ = chosen_BPQ.to(torch.int8).argsort(dim=-1, descending=True, stable=True)
    return counts_BP[:, None], order_BPQ.to(torch.int32)[:, None].contiguous()


def _make_mask(first_BT: Tensor, last_BT: Tensor, differ: bool) -> Where:
    """Return the mask function for a query and a key; `differ` if the rows are not all alike."""

    def sees(row: Tensor, _: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key >= first_BT[row, query]) & (key <= last_BT[row, query])

    def sees_alike(_: Tensor, __: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key >= first_BT[0, query]) & (key <= last_BT[0, query])

    return sees if differ else sees_alike


def _make_change(
    cap: float | None, slopes_H: Tensor | None, past: int, device: torch.device
) -> Callable[..., Tensor]:
    """Return the function that changes a logit.

    The first query is `past` places after the first key. Constants are tensors on the device,
    because a compiler makes symbols of Python numbers that differ between calls, and some of its
    versions lose them.
    """
    bound = None if cap is None else torch.full((), cap, device=device)
    shift = torch.full((), past, dtype=torch.int32, device=device)

    def change(logit: Tensor, _: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        if bound is not None:
            logit = bound * torch.tanh(logit / bound)
        if slopes_H is not None:
            logit = logit - slopes_H[head] * (query + shift - key).abs()
        return logit

    return change
