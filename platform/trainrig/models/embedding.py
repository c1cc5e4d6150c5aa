"""Token embedding with gradients accumulated in float32.

Shapes: V vocabulary entries, C channels, [...] any dims of ids.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


class Embedding(nn.Embedding):
    """Token embedding `weight` [V, C] whose gradients are accumulated in float32.

    torch accumulates the gradients of a row in the dtype of the weight: on a CPU always, and on a
    GPU for few ids. A bfloat16 sum stops growing once it is 256 times the addend, and frequent
    tokens appear that often in one batch.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Return the embedding vectors [..., C] of token ids [...]."""
        if self.weight.dtype == torch.float32:
            return F.embedding(input, self.weight)
        rows: Tensor = _Lookup.apply(self.weight, input)  # type: ignore[no-untyped-call]
        return rows


class _Lookup(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight_VC: Tensor, ids: Tensor) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.entries = weight_VC.shape[0]
        return F.embedding(ids, weight_VC)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (ids,) = ctx.saved_tensors
        return add_gradients(gradient, ids, ctx.entries), None


def add_gradients(gradient: Tensor, ids: Tensor, entries: int) -> Tensor:
    """Return the sum of `gradient` [..., C] for each of `entries` ids, [V, C].

    The sum is taken in float32 and rounded once.
    """
    # On a GPU `index_add_` adds in no fixed order; this kernel sorts by id first.
    if gradient.is_cuda:
        add: Any = torch.ops.aten.embedding_dense_backward
        total_VC: Tensor = add(gradient.float(), ids, entries, -1, False)
        return total_VC.to(gradient.dtype)
    channels = gradient.shape[-1]
    total_VC = torch.zeros(entries, channels, dtype=torch.float32, device=gradient.device)
    total_VC.index_add_(0, ids.reshape(-1), gradient.reshape(-1, channels).float())
    return total_VC.to(gradient.dtype)
