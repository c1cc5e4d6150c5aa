"""From ids to vectors.

Shapes: V entries of the vocabulary, C channels, [...] any dims of ids.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


class Embedding(nn.Embedding):
    """A row of `weight` [V, C] for each id, whose gradients are added up in float32.

    torch adds the gradients of a row in the dtype of the weight: on a CPU always, and on a GPU
    where ids are few. In bfloat16 a sum stops growing once it is 256 times what is added, and
    frequent tokens come up that often in one batch.
    """

    def forward(self, input: Tensor) -> Tensor:
        """[...] ids to [..., C]."""
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
    """The sums of `gradient` [..., C] by `ids` [...] of that many `entries`, [V, C]: in float32,
    and then rounded once."""
    if gradient.is_cuda:  # `index_add_` adds in no fixed order there; this kernel sorts by id
        add: Any = torch.ops.aten.embedding_dense_backward
        total_VC: Tensor = add(gradient.float(), ids, entries, -1, False)
        return total_VC.to(gradient.dtype)
    channels = gradient.shape[-1]
    total_VC = torch.zeros(entries, channels, dtype=torch.float32, device=gradient.device)
    total_VC.index_add_(0, ids.reshape(-1), gradient.reshape(-1, channels).float())
    return total_VC.to(gradient.dtype)
