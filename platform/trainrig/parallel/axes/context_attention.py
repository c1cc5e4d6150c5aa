"""Attention of a decoder whose rows are split over the ranks of a context axis.

Everything else in a decoder treats each position separately. Only attention, and the rules of which
positions a query may attend to, need whole rows. `split_attention` replaces these two on the
model's instances.

Shapes: B rows, T positions of a row, t = T / c of them on each of c ranks, n = t / 2 of a chunk, H
query heads, K key heads, D channels of a head.
"""

import functools
import math
from collections.abc import Callable
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor

from trainrig.models.attention import (
    Attention,
    MaskRegions,
    Sight,
    make_added_mask,
    make_document_mask,
    number_documents,
)
from trainrig.models.decoder import Decoder
from trainrig.models.kernels.kernel_choice import KernelChoice
from trainrig.models.kernels.prepared_rows import prepare_rows
from trainrig.models.layer_parts import compute_alibi_slopes
from trainrig.parallel.axes.context_parts import find_chunks, gather_parts, gather_row, join
from trainrig.parallel.axes.context_ring import Ring

Attend = Callable[[Tensor, Tensor, Tensor, Sight], Tensor]
Choose = Callable[..., KernelChoice]  # Decoder.choose_kernel


class PartSight(Sight):
    """Attention mask of one rank's positions over the whole row."""

    def __init__(self, whole: Sight, documents_BT: Tensor, chunks: tuple[Sight, ...]) -> None:
        """Set the mask of the row and the mask of each chunk.

        `whole` holds the rotary embedding of this rank's positions. `documents_BT` numbers the
        documents at all positions of the row. `chunks`: for each chunk of this rank, the mask over
        the keys up to the chunk's own end.
        """
        super().__init__(whole.rotation, documents_BT, whole.window)
        self.chunks = chunks


def split_attention(
    model: Decoder, group: dist.ProcessGroup, keys: Literal["gather", "ring"]
) -> None:
    """Make `model` read parts of rows, in place and permanently.

    Each rank of `group` reads the positions that `trainrig.parallel.axes.context_parts` assigns
    to it. `keys`: how keys and values reach the ranks that need them. Call this before `recompute`
    and `shard`.
    """
    vars(model)["sights"] = functools.partial(
        _make_part_sights, model.sights, group, keys, model.choose_kernel
    )
    for layer in model.layers:
        attention = layer.attention
        assert isinstance(attention, Attention)
        if keys == "ring":
            attend: Attend = functools.partial(
                _attend_in_ring, attention, group, model.choose_kernel
            )
        else:
            attend = functools.partial(_attend_gathered, attention.attend, group)
        vars(attention)["attend"] = attend


def _make_part_sights(
    sights: Callable[[Tensor, Tensor | None], dict[bool, Sight]],
    group: dist.ProcessGroup,
    keys: str,
    choose: Choose,
    positions_Bt: Tensor,
    documents_Bt: Tensor | None,
    marks: MaskRegions | None = None,
    dtype: torch.dtype | None = None,
) -> dict[bool, Sight]:
    """Return the masks of this rank's positions, in place of `Decoder.sights`.

    Document boundaries of whole rows are gathered from all ranks, because `documents_Bt` starts to
    count at 0 on each of them.
    """
    assert marks is None  # objectives with such marks are refused with context parallelism
    positions_BT = join(gather_parts(positions_Bt, group), dim=1)
    documents_BT = number_documents(positions_BT)
    size = positions_Bt.shape[1] // 2
    ends = [(number + 1) * size for number in find_chunks(group.rank(), group.size())]
    seen = [documents_BT[:, :end] for end in ends] if keys == "gather" else []
    kernel = None
    if dtype is not None:
        kernel = choose(dtype, documents_BT.device, in_ring=keys == "ring").kernel
    hidden: list[tuple[Tensor | None, Tensor | None]] = [(None, None) for _ in seen]
    if kernel is None:
        hidden = [_make_masks(documents, size, dtype) for documents in seen]
    found = {}
    for local, whole in sights(positions_Bt, None).items():
        chunks = []
        for documents, (mask, added) in zip(seen, hidden, strict=True):
            sizes = size, documents.shape[1]
            rows = prepare_rows(kernel, documents, sizes, documents.device, whole.window, True)
            parts = documents, whole.window, mask
            chunks.append(Sight(None, *parts, added_B1TS=added, kernel=kernel, rows=rows))
        found[local] = PartSight(whole, documents_BT, tuple(chunks))
    return dict(found)


def _make_masks(
    documents_BS: Tensor, new: int, dtype: torch.dtype | None
) -> tuple[Tensor, Tensor | None]:
    """Return the boolean mask, and the additive mask in `dtype` if a backward pass will keep it."""
    mask_B1TS = make_document_mask(documents_BS, new)
    if dtype is None or not torch.is_grad_enabled():
        return mask_B1TS, None
    return mask_B1TS, make_added_mask(mask_B1TS, dtype)


def _attend_gathered(
    attend: Attend,
    group: dist.ProcessGroup,
    query_BHtD: Tensor,
    key_BKtD: Tensor,
    value_BKtD: Tensor,
    sight: Sight,
) -> Tensor:
    """Return what `attend` gives for each chunk of queries over all keys up to the chunk's end."""
    assert isinstance(sight, PartSight)
    key_BKTD, value_BKTD = gather_row(torch.stack((key_BKtD, value_BKtD)), group)
    size = query_BHtD.shape[2] // 2
    found = []
    for query, number, chunk in zip(
        torch.split(query_BHtD, size, dim=2),
        find_chunks(group.rank(), group.size()),
        sight.chunks,
        strict=True,
    ):
        end = (number + 1) * size
        found.append(attend(query, key_BKTD[:, :, :end], value_BKTD[:, :, :end], chunk))
    return torch.cat(found, dim=2)


def _attend_in_ring(
    attention: Attention,
    group: dist.ProcessGroup,
    choose: Choose,
    query_BHtD: Tensor,
    key_BKtD: Tensor,
    value_BKtD: Tensor,
    sight: Sight,
) -> Tensor:
    assert sight.documents_BS is not None
    slopes_H = None
    if attention.alibi:
        slopes_H = torch.tensor(compute_alibi_slopes(query_BHtD.shape[1]), device=query_BHtD.device)
    ring = Ring(
        group,
        sight.documents_BS,
        attention.query_scale or 1 / math.sqrt(attention.head_channels),
        sight.window,
        attention.logit_cap,
        slopes_H,
        choose(query_BHtD.dtype, query_BHtD.device, in_ring=True).kernel == "triton",
    )
    return ring.attend(query_BHtD, key_BKtD, value_BKtD, attention.sinks)
