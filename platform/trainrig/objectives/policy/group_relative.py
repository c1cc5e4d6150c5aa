"""Completions of a prompt beside each other: GRPO and what it grew into.

Shapes: B completions of a micro-batch, T positions, G prompts, S completions of each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from trainrig.objectives.policy.policy_gradient import (
    ClippedPolicy,
    Floats,
    PolicyGradient,
    centre,
)
from trainrig.tokens.batches import LIMIT_TOKENS, TOKENS

if TYPE_CHECKING:  # run files are read without torch, which takes seconds to import
    from torch import Tensor


class GRPO(ClippedPolicy):
    """Group relative policy optimisation: the reward less the group's mean, over its standard
    deviation; each completion counts the same (Shao et al. 2024, arXiv:2402.03300, equation 3)."""

    kind: Literal["GRPO"] = "GRPO"


class DrGRPO(ClippedPolicy):
    """GRPO without its two biases: no standard deviation, and all tokens over the number that
    completions may have (Liu et al. 2025, arXiv:2503.20783, section 3.2)."""

    kind: Literal["DrGRPO"] = "DrGRPO"

    @property
    def per(self) -> str:
        """Tokens that all completions may have."""
        return LIMIT_TOKENS

    def compute_advantages(self, rewards_GS: Floats) -> Floats:
        """The reward less the group's mean."""
        return centre(rewards_GS)


class DAPO(ClippedPolicy):
    """GRPO that counts each token the same and may raise rare ones further; with
    `rollouts.waves`, prompts whose completions are all worth the same are left out and others drawn
    (Yu et al. 2025, arXiv:2503.14476, equation 8)."""

    kind: Literal["DAPO"] = "DAPO"
    # How far above 1 the probability ratio may lie and still be learnt from (section 4.1).
    clip_high: float = Field(default=0.28, gt=0, allow_inf_nan=False)

    @property
    def per(self) -> str:
        """Tokens of all completions."""
        return TOKENS


class CISPO(PolicyGradient):
    """The clipped ratio only weighs the log-probability, so clipped tokens still teach (MiniMax
    2025, arXiv:2506.13585, equation 4). Ratios below 1 are not clipped."""

    kind: Literal["CISPO"] = "CISPO"

    @property
    def per(self) -> str:
        """Tokens of all completions."""
        return TOKENS

    def compute_losses(self, ratio_BT: Tensor, log_BT: Tensor, advantages: Tensor) -> Tensor:
        """The log-probability, weighed."""
        weight_BT = ratio_BT.detach().clamp(max=1 + self.clip_high)
        return -weight_BT * advantages * log_BT


class GSPO(ClippedPolicy):
    """The ratio is of whole completions, the geometric mean over their tokens (Zheng et al. 2025,
    arXiv:2507.18071, equations 5 and 7). Clips are far narrower than those of tokens."""

    kind: Literal["GSPO"] = "GSPO"
    clip_low: float = Field(default=3e-4, gt=0, lt=1)  # below 1 (section 5.1)
    clip_high: float = Field(default=4e-4, gt=0, allow_inf_nan=False)  # above 1

    def compute_ratios(self, change_BT: Tensor, mask_BT: Tensor) -> Tensor:
        """[B, T], the same for all tokens of a completion."""
        mean_B1 = (change_BT * mask_BT).sum(1, keepdim=True) / mask_BT.sum(1, keepdim=True)
        return mean_B1.exp().expand_as(change_BT)
