"""REINFORCE with baselines: leave-one-out, and over the global batch.

Shapes: B completions of a micro-batch, T positions, G prompts, S completions of each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from trainrig.objectives.contract import DeviceBatch
from trainrig.objectives.policy.policy_gradient import ClippedPolicy, Floats, centre
from trainrig.tokens.batches import ADVANTAGES, IGNORE, TARGETS, TOKEN_ADVANTAGES, TOKENS

if TYPE_CHECKING:  # run files are read without torch, which takes seconds to import
    from torch import Tensor, nn

VARIANCE_FLOOR = 1e-8  # added to variances, as verl has it


class RLOO(ClippedPolicy):
    """REINFORCE with the mean reward of the other completions as its baseline; a completion is one
    action, its ratio that of all its tokens (Ahmadian et al. 2024, arXiv:2402.14740, section 2.3).
    """

    kind: Literal["RLOO"] = "RLOO"

    def compute_advantages(self, rewards_GS: Floats) -> Floats:
        """The reward less the mean of the others."""
        count = rewards_GS.shape[1]
        advantages_GS: Floats = centre(rewards_GS) * (count / (count - 1))
        return advantages_GS

    def compute_ratios(self, change_BT: Tensor, mask_BT: Tensor) -> Tensor:
        """[B, T], the same for all tokens of a completion."""
        return (change_BT * mask_BT).sum(1, keepdim=True).exp().expand_as(change_BT)


class ReinforcePlusPlus(ClippedPolicy):
    """REINFORCE++: advantages of all tokens of the global batch are brought to mean 0 and standard
    deviation 1, not within a group (Hu et al. 2025, arXiv:2501.03262, section 3; as verl has it).

    A token's advantage is the completion's reward less what the divergence takes off for it and
    the tokens after it, where that is in the reward. A long completion counts for as many tokens
    as it has.
    """

    kind: Literal["ReinforcePlusPlus"] = "ReinforcePlusPlus"
    # What is taken off rewards first: nothing, or the mean of the group ("-baseline").
    baseline: Literal["none", "group"] = "none"

    @property
    def per(self) -> str:
        """Tokens of all completions."""
        return TOKENS

    @property
    def statistics(self) -> tuple[str, ...]:
        """Sums of the tokens' advantages, of their squares, and how many tokens there are."""
        return ("advantages", "squares", "tokens")

    def measure(self, model: nn.Module, batch: DeviceBatch) -> Mapping[str, Tensor]:
        """What `batch` adds to the three."""
        mask_BT = batch.arrays[TARGETS] != IGNORE
        each_BT = _read_raw(batch.arrays).double() * mask_BT
        squares, tokens = each_BT.square().sum(), mask_BT.sum().double()
        return {"advantages": each_BT.sum(), "squares": squares, "tokens": tokens}

    def compute_advantages(self, rewards_GS: Floats) -> Floats:
        """The reward, less the group's mean where that is the baseline."""
        return centre(rewards_GS) if self.baseline == "group" else rewards_GS

    def credit(
        self,
        rewards_GS: Floats,
        mask_BT: NDArray[np.bool_],
        penalties_BT: Floats | None,
        values_BT: Floats | None,
    ) -> dict[str, NDArray[np.float32]]:
        """See PolicyGradient. With the group as its baseline, a completion answers as a whole for
        the penalties of all its tokens."""
        found = super().credit(rewards_GS, mask_BT, penalties_BT, values_BT)
        if penalties_BT is None or self.baseline == "group":
            return found
        ahead_BT = penalties_BT[:, ::-1].cumsum(1)[:, ::-1]
        returns_BT = (rewards_GS.reshape(-1, 1) - ahead_BT) * mask_BT
        return found | {TOKEN_ADVANTAGES: returns_BT.astype(np.float32)}

    def read_advantages(
        self, arrays: Mapping[str, Tensor], statistics: Mapping[str, float]
    ) -> Tensor:
        """[B, 1] or [B, T], by mean and standard deviation of the tokens of the global batch."""
        count = statistics["tokens"]
        mean = statistics["advantages"] / count
        spread = max(0.0, statistics["squares"] / count - mean**2)
        variance = spread * count / max(1.0, count - 1)  # that of a sample
        return (_read_raw(arrays) - mean) / math.sqrt(variance + VARIANCE_FLOOR)


def _read_raw(arrays: Mapping[str, Tensor]) -> Tensor:
    """[B, 1] advantages of completions, or [B, T] where each token has its own."""
    if TOKEN_ADVANTAGES in arrays:
        return arrays[TOKEN_ADVANTAGES]
    return arrays[ADVANTAGES][:, None]
