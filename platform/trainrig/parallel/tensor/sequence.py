"""Sequence parallelism: each rank of a tensor axis has some places of what flows between products.

Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.2. Norms, sums and dropout treat each place
by itself, so each rank does so with its own. Before a product that ranks share the places of all
are gathered, and what it gives is added up and scattered: as many bytes as the sum alone would
take. What a layer keeps of the gathered places for its backward pass is this rank's part; the
others' are gathered again.

Shapes: B rows, T positions, t = T / ranks of them on a rank, neighbours; C channels.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks


def gather_places(part_BtC: Tensor, group: dist.ProcessGroup) -> Tensor:
    """[B, T, C] of the parts of all ranks of `group`; backward, of each part the sum of what comes
    back to it on all ranks."""
    whole: Tensor = _Gather.apply(part_BtC, group)  # type: ignore[no-untyped-call]
    return whole


def gather_apart(part_BtC: Tensor, group: dist.ProcessGroup) -> tuple[Tensor, Tensor]:
    """[B, T, C] of the parts of all ranks of `group`, twice: for what all ranks compute alike, and
    for what each computes a part of. Backward, of this rank's places what comes back to the first,
    and the sum over ranks of what comes back to the second."""
    alike: Tensor
    apart: Tensor
    alike, apart = _GatherApart.apply(part_BtC, group)  # type: ignore[no-untyped-call]
    return alike, apart


def scatter_sum(x_BTC: Tensor, group: dist.ProcessGroup) -> Tensor:
    """[B, t, C] this rank's places of the sum of the `x` of all ranks of `group`; backward, what
    comes back to all places."""
    part: Tensor = _ScatterSum.apply(x_BTC, group)  # type: ignore[no-untyped-call]
    return part


def pad_rows(
    forward: Callable[..., Any],
    ranks: int,
    ids_BT: Tensor,
    places_N: Tensor | None = None,
    **marks_BT: Tensor | None,
) -> Any:
    """`forward` of rows that are filled up until each of `ranks` has as many places; what it gives
    of the places that were there. `marks_BT`: what else it is told of each place."""
    length = ids_BT.shape[1]
    added = -length % ranks
    if not added:
        return forward(ids_BT, places_N=places_N, **marks_BT)
    wider = {name: F.pad(each, (0, added)) for name, each in marks_BT.items() if each is not None}
    if places_N is not None:
        places_N = places_N + places_N // length * added
    output = forward(F.pad(ids_BT, (0, added)), places_N=places_N, **wider)
    return output if places_N is not None else output._replace(hidden=output.hidden[:, :length])


def take_own_places(x: Tensor, group: dist.ProcessGroup, dim: int) -> Tensor:
    """This rank's t of the T places along `dim` of what all ranks have alike."""
    size = x.shape[dim] // group.size()
    return x.narrow(dim, group.rank() * size, size)


def gather_then(
    forward: Callable[..., Any], group: dist.ProcessGroup, kept: bool, part_BtC: Tensor, *rest: Any
) -> Any:
    """`forward` of the places of all ranks. `kept`: what it saves of them is saved whole, else as
    this rank's part, for the others' to be gathered once more in the backward pass."""
    if not part_BtC.shape[0]:  # all ranks of the group have the same rows, so none waits for this
        return part_BtC
    whole_BTC = gather_places(part_BtC, group)
    if kept or not torch.is_grad_enabled():
        return forward(whole_BTC, *rest)
    saved = _SavedParts(part_BtC.detach(), whole_BTC, group)
    with saved_tensors_hooks(saved.pack, saved.unpack):
        return forward(whole_BTC, *rest)


class _Whole:
    """Stands for a view of the gathered places."""

    def __init__(self, view: Tensor) -> None:
        self.size, self.stride, self.first = view.size(), view.stride(), view.storage_offset()


class _SavedParts:
    """Saves a part in place of the whole that is gathered of it."""

    def __init__(self, part_BtC: Tensor, whole_BTC: Tensor, group: dist.ProcessGroup) -> None:
        self._part, self._group = part_BtC, group
        self._storage = whole_BTC.untyped_storage().data_ptr()
        self._saved = 0  # views that no backward pass has asked for yet
        self._whole: Tensor | None = None

    def pack(self, tensor: Tensor) -> Tensor | _Whole:
        if not tensor.numel() or tensor.untyped_storage().data_ptr() != self._storage:
            return tensor
        self._saved += 1
        return _Whole(tensor)

    def unpack(self, saved: Tensor | _Whole) -> Tensor:
        if isinstance(saved, Tensor):
            return saved
        whole = _gather(self._part, self._group) if self._whole is None else self._whole
        self._saved -= 1
        self._whole = whole if self._saved else None  # let go of with its last view
        return whole.as_strided(saved.size, saved.stride, saved.first)


def _gather(part_BtC: Tensor, group: dist.ProcessGroup) -> Tensor:
    rows, places, channels = part_BtC.shape
    ranks = group.size()
    parts = part_BtC.new_empty(ranks * rows, places, channels)
    if parts.numel():  # of rows that ranks divide one may have none
        dist.all_gather_into_tensor(parts, part_BtC.contiguous(), group=group)
    parts = parts.view(ranks, rows, places, channels)
    return parts.transpose(0, 1).reshape(rows, ranks * places, channels)


def _scatter(x_BTC: Tensor, group: dist.ProcessGroup) -> Tensor:
    rows, places, channels = x_BTC.shape
    ranks = group.size()
    part = x_BTC.new_empty(rows, places // ranks, channels)
    if part.numel():
        parts = x_BTC.view(rows, ranks, places // ranks, channels).transpose(0, 1).contiguous()
        dist.reduce_scatter_tensor(part, parts.flatten(0, 1), group=group)
    return part


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part_BtC: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return _gather(part_BtC, group)

    @staticmethod
    def backward(ctx: Any, gradient_BTC: Tensor) -> tuple[Tensor, None]:
        return _scatter(gradient_BTC.contiguous(), ctx.group), None


class _GatherApart(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part_BtC: Tensor, group: dist.ProcessGroup) -> tuple[Tensor, Tensor]:
        ctx.group = group
        whole_BTC = _gather(part_BtC, group)
        return whole_BTC, whole_BTC.view_as(whole_BTC)

    @staticmethod
    def backward(ctx: Any, alike_BTC: Tensor, apart_BTC: Tensor) -> tuple[Tensor, None]:
        own_BtC = take_own_places(alike_BTC, ctx.group, 1)
        return own_BtC + _scatter(apart_BTC.contiguous(), ctx.group), None


class _ScatterSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_BTC: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return _scatter(x_BTC.contiguous(), group)

    @staticmethod
    def backward(ctx: Any, gradient_BtC: Tensor) -> tuple[Tensor, None]:
        return _gather(gradient_BtC, ctx.group), None
