"""Collectives of tensor parallelism: sums of parts of a layer, and sequence parallelism.

They are Megatron-LM's two operators (Shoeybi et al. 2019, arXiv:1909.08053, section 3), each the
other's backward pass. All ranks get the same bits, so parameters that all of them hold stay equal.

With sequence parallelism each rank has some positions between matrix products:

Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.2. Norms, sums and dropout treat each
position separately, so each rank computes them for its own positions. Before a product that ranks
share, the positions of all ranks are gathered. Afterwards the outputs are added and scattered, with
as many bytes as the sum alone would take. Of the gathered positions a layer saves only this rank's
part for its backward pass; those of the others are gathered again.

Shapes: B rows, T positions, t = T / ranks of them on a rank, neighbours; C channels.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks


def copy_in(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Return `x` for different use on each rank; backward, sum its gradient over `group`."""
    copied: Tensor = _CopyIn.apply(x, group)  # type: ignore[no-untyped-call]
    return copied


def add_up(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Return the sum of `x` over all ranks of `group`; backward, pass the gradient on unchanged."""
    total: Tensor = _AddUp.apply(x, group)  # type: ignore[no-untyped-call]
    return total


def _sum(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    # A copy, because recomputation may have saved `x`, which must not change.
    total = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=group)
    return total


class _CopyIn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _sum(gradient, ctx.group), None


class _AddUp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        return _sum(x, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


def gather_places(part_BtC: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Return [B, T, C] from the parts of all ranks of `group`.

    Backward, each part gets the sum of its gradients over all ranks.
    """
    whole: Tensor = _Gather.apply(part_BtC, group)  # type: ignore[no-untyped-call]
    return whole


def gather_apart(part_BtC: Tensor, group: dist.ProcessGroup) -> tuple[Tensor, Tensor]:
    """Return [B, T, C] from the parts of all ranks of `group`, twice.

    The first is for what all ranks compute alike: its gradient is used as it is. The second is for
    what each rank computes a part of: its gradient is added over ranks.
    """
    alike: Tensor
    apart: Tensor
    alike, apart = _GatherApart.apply(part_BtC, group)  # type: ignore[no-untyped-call]
    return alike, apart


def scatter_sum(x_BTC: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Return [B, t, C], this rank's positions of the sum of `x_BTC` over the ranks of `group`.

    Backward, the gradients of all positions are gathered.
    """
    part: Tensor = _ScatterSum.apply(x_BTC, group)  # type: ignore[no-untyped-call]
    return part


def pad_rows(
    forward: Callable[..., Any],
    ranks: int,
    ids_BT: Tensor,
    places_N: Tensor | None = None,
    **marks_BT: Tensor | None,
) -> Any:
    """Return the output of `forward` for rows padded to a multiple of `ranks` positions.

    Outputs at padding positions are removed. `marks_BT`: further arguments with a value per
    position.
    """
    length = ids_BT.shape[1]
    added = -length % ranks
    if not added:
        return forward(ids_BT, places_N=places_N, **marks_BT)
    wider = {name: F.pad(mark, (0, added)) for name, mark in marks_BT.items() if mark is not None}
    if places_N is not None:
        places_N = places_N + places_N // length * added
    output = forward(F.pad(ids_BT, (0, added)), places_N=places_N, **wider)
    return output if places_N is not None else output._replace(hidden=output.hidden[:, :length])


def take_own_places(x: Tensor, group: dist.ProcessGroup, dim: int) -> Tensor:
    """Return this rank's t of the T positions along `dim` of a tensor that all ranks hold."""
    size = x.shape[dim] // group.size()
    return x.narrow(dim, group.rank() * size, size)


def gather_then(
    forward: Callable[..., Any], group: dist.ProcessGroup, kept: bool, part_BtC: Tensor, *rest: Any
) -> Any:
    """Return the output of `forward` for the positions of all ranks.

    `kept`: what `forward` saves for the backward pass is saved whole. Otherwise this rank's part is
    saved, and the others' are gathered once more in the backward pass.
    """
    if not part_BtC.shape[0]:  # all ranks of the group have the same rows, so no other rank waits
        return part_BtC
    whole_BTC = gather_places(part_BtC, group)
    if kept or not torch.is_grad_enabled():
        return forward(whole_BTC, *rest)
    saved = _SavedParts(part_BtC.detach(), whole_BTC, group)
    with saved_tensors_hooks(saved.pack, saved.unpack):
        return forward(whole_BTC, *rest)


class _Whole:
    """Placeholder for a view of the gathered positions."""

    def __init__(self, view: Tensor) -> None:
        self.size = view.size()
        self.stride = view.stride()
        self.first = view.storage_offset()


class _SavedParts:
    """Autograd hooks that save a rank's part in place of the gathered whole."""

    def __init__(self, part_BtC: Tensor, whole_BTC: Tensor, group: dist.ProcessGroup) -> None:
        self._part = part_BtC
        self._group = group
        self._storage = whole_BTC.untyped_storage().data_ptr()
        self._saved = 0  # saved views that no backward pass has used yet
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
        self._whole = whole if self._saved else None  # freed with its last view
        return whole.as_strided(saved.size, saved.stride, saved.first)


def _gather(part_BtC: Tensor, group: dist.ProcessGroup) -> Tensor:
    rows, places, channels = part_BtC.shape
    ranks = group.size()
    parts = part_BtC.new_empty(ranks * rows, places, channels)
    if parts.numel():  # with rows divided over ranks, one may have none
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
