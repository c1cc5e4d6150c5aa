"""REINFORCE with baselines: leave-one-out, and over the global batch.

Shapes: B completions of a micro-batch, T positions, G prompts, S completions of each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from trainrig.objectives.contract import DeviceBatch
from trainrig.objectives.policy.policy_gradient import SPREAD_FLOOR, ClippedPolicy, Floats, centre
from trainrig.tokens.batches import ADVANTAGES, TOKENS

if TYPE_CHECKING:  # run files are read without torch, which takes seconds to import
    from torch import Tensor, nn


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
    """REINFORCE++: advantages are brought to mean 0 and standard deviation 1 over the global batch,
    not within a group (Hu et al. 2025, arXiv:2501.03262, section 3)."""

    kind: Literal["ReinforcePlusPlus"] = "ReinforcePlusPlus"
    # What is taken off rewards first: nothing, or the mean of the group ("-baseline").
    baseline: Literal["none", "group"] = "none"

    @property
    def per(self) -> str:
        """Tokens of all completions."""
        return TOKENS

    @property
    def statistics(self) -> tuple[str, ...]:
        """Sums of the advantages, of their squares, and how many there are."""
        return ("advantages", "squares", "rows")

    def measure(self, model: nn.Module, batch: DeviceBatch) -> Mapping[str, Tensor]:
        """What `batch` adds to the three."""
        each_B = batch.arrays[ADVANTAGES].double()
        rows = each_B.new_tensor(len(each_B))
        return {"advantages": each_B.sum(), "squares": (each_B**2).sum(), "rows": rows}

    def compute_advantages(self, rewards_GS: Floats) -> Floats:
        """The reward, less the group's mean where that is the baseline."""
        return centre(rewards_GS) if self.baseline == "group" else rewards_GS

    def normalise_advantages(self, advantages_B: Tensor, statistics: Mapping[str, float]) -> Tensor:
        """[B] by mean and standard deviation of the global batch."""
        rows = statistics["rows"]
        mean = statistics["advantages"] / rows
        variance = max(0.0, statistics["squares"] / rows - mean**2)
        spread = math.sqrt(variance) + SPREAD_FLOOR
        return (advantages_B - mean) / spread
