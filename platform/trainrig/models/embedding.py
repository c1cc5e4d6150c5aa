"""From ids to vectors.

Shapes: V entries of the vocabulary, C channels, [...] any dims of ids.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


class Embedding(nn.Embedding):
    """A row of `weight` [V, C] for each id, whose slopes are added up in float32.

    On a CPU, torch adds the slopes of a row in the dtype of the weight. In bfloat16 a sum stops
    growing once it is 256 times what is added, and frequent tokens come up that often in one batch.
    """

    def forward(self, input: Tensor) -> Tensor:
        """[...] ids to [..., C]."""
        if self.weight.dtype == torch.float32 or self.weight.is_cuda:  # CUDA's kernel does as we do
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
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None]:
        (ids,) = ctx.saved_tensors
        channels = slope.shape[-1]
        total_VC = torch.zeros(ctx.entries, channels, dtype=torch.float32, device=slope.device)
        total_VC.index_add_(0, ids.reshape(-1), slope.reshape(-1, channels).float())
        return total_VC.to(slope.dtype), None
