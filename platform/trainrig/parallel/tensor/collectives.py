"""What ranks that share a layer send each other: sums of what each has a part of.

Megatron-LM's two operators (Shoeybi et al. 2019, arXiv:1909.08053, section 3), each the other's
backward pass. Ranks get the same bits, so what all of them hold alike stays so.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def copy_in(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """`x` itself, which each rank of `group` goes on with in another way; backward, the sum of what
    comes back to them."""
    copied: Tensor = _CopyIn.apply(x, group)  # type: ignore[no-untyped-call]
    return copied


def add_up(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """The sum of the `x` of all ranks of `group`, on each; backward, each goes on from there."""
    total: Tensor = _AddUp.apply(x, group)  # type: ignore[no-untyped-call]
    return total


def _sum(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    # A copy: what recomputing keeps of a layer may not change.
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
