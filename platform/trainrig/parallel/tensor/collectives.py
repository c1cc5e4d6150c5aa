"""Collectives of ranks that share a layer: sums of what each rank has a part of.

They are Megatron-LM's two operators (Shoeybi et al. 2019, arXiv:1909.08053, section 3), each the
other's backward pass. All ranks get the same bits, so parameters that all of them hold stay equal.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


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
