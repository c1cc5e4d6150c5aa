"""Keys and values of whole rows, gathered from the parts on the ranks of a context axis.

In the forward pass each rank receives the other ranks' keys and values. In the backward pass their
gradients go to the ranks that own the positions, which add them in the order of ranks, so the same
layout gives the same bits. In each direction a rank receives (c - 1) / c of the row's keys and
values: 2 B K T D (c - 1) / c elements, for B rows, K key heads of D channels, T positions of a row
and c ranks.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trainrig.parallel.context.zigzag import cut, join


def gather_row(part: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Return whole rows […, T, D] in order, from the `part` […, t, D] of each rank.

    Collective, forward and backward.
    """
    whole: Tensor = _GatherRow.apply(part, group)  # type: ignore[no-untyped-call]
    return whole


def gather_parts(part: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Return [c, …], the `part` […] of each rank of `group` in order. Collective.

    No gradients flow back.
    """
    parts = part.new_empty(group.size() * part.shape[0], *part.shape[1:])
    dist.all_gather_into_tensor(parts, part.contiguous(), group=group)
    return parts.view(group.size(), *part.shape)


def gather_shared(part: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Return [c, …], the `part` […] of each rank of `group` in order, with gradients. Collective.

    Use this where all ranks compute the same result from it. In the backward pass each rank keeps
    the gradient of its own part, and nothing is sent.
    """
    parts: Tensor = _GatherShared.apply(part, group)  # type: ignore[no-untyped-call]
    return parts


class _GatherShared(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.rank = group.rank()
        return gather_parts(part, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient[ctx.rank], None


class _GatherRow(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return join(gather_parts(part, group), dim=-2)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        outgoing = cut(gradient, ctx.group.size(), dim=-2)
        incoming = torch.empty_like(outgoing)
        dist.all_to_all_single(incoming, outgoing, group=ctx.group)
        total = incoming[0].float()
        for piece in incoming[1:]:
            total = total + piece
        return total.to(gradient.dtype), None
