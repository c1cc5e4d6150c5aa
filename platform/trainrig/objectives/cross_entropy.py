"""Cross-entropy of targets under given logits, in chunks of rows.

No float32 copy of all logits is made. Results are sums, not means: the denominator is that of the
whole global batch, which one micro-batch does not know.

Shapes: B batch, T positions, V entries of the vocabulary, N tokens (B x T), R rows of one chunk.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from trainrig.tokens.batches import IGNORE

# Number of logits processed at once, as float32. CPU: 1 MiB stays in a core's cache (1 MiB on the
# EPYC of the measurement), which makes the loss of 2,048 tokens of 4,096 or 16,384 entries 1.7 to
# 3.5 times as fast as with 64 MiB. Other devices: 64 MiB, little compared with the logits, and
# enough to keep a device busy.
CHUNK_ELEMENTS = {"cpu": 2**18}
CHUNK_ELEMENTS_ELSEWHERE = 2**24


def token_nats(logits_BTV: Tensor, targets_BT: Tensor) -> Tensor:
    """Return the cross-entropy [B, T] of each target, in nats and float32; 0 for IGNORE.

    Logits may have any float dtype; all arithmetic is in float32. Logits are processed some rows at
    a time, forward and backward, without a float32 copy of all of them.
    """
    logits_NV = logits_BTV.reshape(-1, logits_BTV.shape[-1])
    nats_N: Tensor = _Nats.apply(logits_NV, targets_BT.reshape(-1))  # type: ignore[no-untyped-call]
    return nats_N.view(targets_BT.shape)


class _Nats(torch.autograd.Function):
    """Cross-entropy that saves the logits and one number per row for the backward pass.

    Autograd would save V more numbers per row.
    """

    @staticmethod
    def forward(ctx: Any, logits_NV: Tensor, targets_N: Tensor) -> Tensor:
        normaliser_N = torch.empty(len(logits_NV), device=logits_NV.device, dtype=torch.float32)
        chosen_N = torch.empty_like(normaliser_N)
        # Positions without a target use any valid index; their result is masked.
        index_N = targets_N.where(targets_N != IGNORE, 0)
        for rows in cut_rows(logits_NV):
            logits_RV = logits_NV[rows].float()
            normaliser_N[rows] = logits_RV.logsumexp(-1)
            chosen_N[rows] = logits_RV.gather(-1, index_N[rows, None]).squeeze(-1)
        ctx.save_for_backward(logits_NV, targets_N, normaliser_N)
        return (normaliser_N - chosen_N).where(targets_N != IGNORE, 0.0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_N: Tensor) -> tuple[Tensor, None]:
        """Return the softmax minus one at the target, times the gradient of each row."""
        logits_NV, targets_N, normaliser_N = ctx.saved_tensors
        trained_N = targets_N != IGNORE
        index_N = targets_N.where(trained_N, 0)
        gradient_N = gradient_N.where(trained_N, 0.0)
        gradient_NV = torch.empty_like(logits_NV)
        for rows in cut_rows(logits_NV):
            gradient_RV = (logits_NV[rows].float() - normaliser_N[rows, None]).exp_()
            gradient_RV[
                torch.arange(len(gradient_RV), device=gradient_RV.device), index_N[rows]
            ] -= 1
            gradient_NV[rows] = gradient_RV.mul_(gradient_N[rows, None])
        return gradient_NV, None


def cut_rows(logits_NV: Tensor) -> list[slice]:
    """Return slices of rows of logits to process at once."""
    elements = CHUNK_ELEMENTS.get(logits_NV.device.type, CHUNK_ELEMENTS_ELSEWHERE)
    rows = max(1, elements // logits_NV.shape[1])
    return [slice(start, start + rows) for start in range(0, len(logits_NV), rows)]
