"""Parts of a row on the ranks of a context axis, and keys and values gathered from them.

A row of T positions is cut into 2c chunks for c ranks. Rank r has chunks r and 2c - 1 - r, one from
the head and one from the tail. A causal query attends to all chunks before its own, so the two
chunks of every rank attend to 2c + 1 chunks together and all ranks have equal work (Llama 3,
arXiv:2407.21783, section 3.3.2).

In the forward pass each rank receives the other ranks' keys and values. In the backward pass their
gradients go to the ranks that own the positions, which add them in the order of ranks, so the same
layout gives the same bits. In each direction a rank receives (c - 1) / c of the row's keys and
values: 2 B K T D (c - 1) / c elements, for B rows, K key heads of D channels, T positions of a row
and c ranks.

Shapes: c ranks, T positions of a row, t = T / c of them on a rank.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def find_chunks(rank: int, degree: int) -> tuple[int, int]:
    """Return the two chunks of `rank` out of `degree` ranks, counted from 0 to 2 `degree` - 1."""
    return rank, 2 * degree - 1 - rank


def take_part(row: Tensor, rank: int, degree: int, dim: int) -> Tensor:
    """Return a copy of the t positions of `rank`, of the T along `dim` of `row`."""
    chunks = row.chunk(2 * degree, dim)
    return torch.cat([chunks[number] for number in find_chunks(rank, degree)], dim)


def cut(row: Tensor, degree: int, dim: int) -> Tensor:
    """Return [c, …], the parts of all ranks in order, of the T positions along `dim` of `row`."""
    return torch.stack([take_part(row, rank, degree, dim) for rank in range(degree)])


def join(parts: Sequence[Tensor] | Tensor, dim: int) -> Tensor:
    """Return the whole row in order, from the parts of all ranks: the inverse of `cut`."""
    heads, tails = zip(*(part.chunk(2, dim) for part in parts), strict=True)
    return torch.cat((*heads, *reversed(tails)), dim)


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
