"""What a model returns.

Shapes: B batch, T positions, C channels, V entries of the vocabulary.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Head:
    """What makes logits of hidden states. A loss that works through them in blocks of rows needs
    the weight itself, so that all logits are never there at once."""

    weight_VC: Tensor
    bias_V: Tensor | None = None
    # Logits x become cap * tanh(x / cap) (Gemma 2, arXiv:2408.00118, section 2); None: as they are.
    soft_cap: float | None = None
    multiplier: float = 1.0  # of logits, before they are capped

    def __call__(self, hidden: Tensor) -> Tensor:
        """[..., C] to logits [..., V]."""
        logits = F.linear(hidden, self.weight_VC, self.bias_V)
        if self.multiplier != 1:
            logits = logits * self.multiplier
        return logits if self.soft_cap is None else (logits / self.soft_cap).tanh() * self.soft_cap


class ModelOutput(NamedTuple):
    """Hidden states, the head that makes logits of them, and what a model's own parts add to the
    loss.

    A named tuple because FSDP looks for tensors in tuples and mappings alone: it finds `hidden`, at
    whose gradient the backward pass of the model begins.
    """

    hidden: Tensor  # [B, T, C], after the last norm; or [N, C] of the places asked for
    head: Head
    # By name, of experts, say: weighted scalars to add to the loss; vectors are counts to look at.
    auxiliary: Mapping[str, Tensor] = {}

    @property
    def logits(self) -> Tensor:
        """[B, T, V] or [N, V], computed each time it is asked for."""
        return self.head(self.hidden)
