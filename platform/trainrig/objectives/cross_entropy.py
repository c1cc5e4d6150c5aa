"""Cross-entropy of targets under logits, in chunks of rows.

No float32 copy of all logits is made. Sums, not means: the denominator is that of the whole global
batch, which one micro-batch does not know.

Shapes: B batch, T positions, V entries of the vocabulary, N tokens (B x T), R rows of one chunk.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from trainrig.tokens.batches import IGNORE

# Logits worked through at once, as float32. CPU: 1 MiB stays in a core's cache (1 MiB on the EPYC
# where it was measured), which makes the loss of 2,048 tokens of 4,096 or 16,384 entries 1.7 to 3.5
# times as fast as 64 MiB do. Elsewhere 64 MiB: small beside the logits, large enough to keep a
# device busy.
CHUNK_ELEMENTS = {"cpu": 2**18}
CHUNK_ELEMENTS_ELSEWHERE = 2**24


def cross_entropy_sum(logits_BTV: Tensor, targets_BT: Tensor) -> Tensor:
    """Sum of the nats of every target that is not IGNORE: a float32 scalar, to go backward from."""
    return token_nats(logits_BTV, targets_BT).sum()


def token_nats(logits_BTV: Tensor, targets_BT: Tensor) -> Tensor:
    """Nats of each target [B, T], float32; 0 where the target is IGNORE.

    Logits may be of any float dtype; all arithmetic is in float32. No float32 copy of the whole
    of them is made, forward or backward: they are worked through some rows at a time.
    """
    logits_NV = logits_BTV.reshape(-1, logits_BTV.shape[-1])
    nats_N: Tensor = _Nats.apply(logits_NV, targets_BT.reshape(-1))  # type: ignore[no-untyped-call]
    return nats_N.view(targets_BT.shape)


class _Nats(torch.autograd.Function):
    """Keeps the logits and one number a row for the backward pass, where autograd keeps V."""

    @staticmethod
    def forward(ctx: Any, logits_NV: Tensor, targets_N: Tensor) -> Tensor:
        normaliser_N = torch.empty(len(logits_NV), device=logits_NV.device, dtype=torch.float32)
        chosen_N = torch.empty_like(normaliser_N)
        # Any valid index does where nothing is trained on; the result is masked.
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
        """Softmax less one at the target, times the gradient of each row."""
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
    """Rows of logits to work through at once."""
    elements = CHUNK_ELEMENTS.get(logits_NV.device.type, CHUNK_ELEMENTS_ELSEWHERE)
    rows = max(1, elements // logits_NV.shape[1])
    return [slice(start, start + rows) for start in range(0, len(logits_NV), rows)]
