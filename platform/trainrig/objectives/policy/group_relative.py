"""Group-relative policy optimisation (GRPO) and its variants: Dr. GRPO, DAPO, CISPO, GSPO.

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
    """Group-relative policy optimisation.

    An advantage is the reward minus the group's mean, over the group's standard deviation. All
    completions count equally (Shao et al. 2024, arXiv:2402.03300, equation 3).
    """

    kind: Literal["GRPO"] = "GRPO"


class DrGRPO(ClippedPolicy):
    """GRPO without its two biases (Liu et al. 2025, arXiv:2503.20783, section 3.2).

    There is no standard deviation, and the sum over all tokens is divided by the maximum number of
    tokens of all completions.
    """

    kind: Literal["DrGRPO"] = "DrGRPO"

    @property
    def per(self) -> str:
        """The denominator: the maximum number of tokens of all completions."""
        return LIMIT_TOKENS

    def compute_advantages(self, rewards_GS: Floats) -> Floats:
        """Return the rewards minus the group's mean."""
        return centre(rewards_GS)


class DAPO(ClippedPolicy):
    """GRPO in which all tokens count equally and the ratio of rare tokens may rise further.

    With `rollouts.waves`, prompts whose completions all have the same reward are dropped and others
    are drawn (Yu et al. 2025, arXiv:2503.14476, equation 8).
    """

    kind: Literal["DAPO"] = "DAPO"
    # How far above 1 the probability ratio of a token may be before it is clipped (section 4.1).
    clip_high: float = Field(default=0.28, gt=0, allow_inf_nan=False)

    @property
    def per(self) -> str:
        """The denominator: tokens of all completions."""
        return TOKENS


class CISPO(PolicyGradient):
    """Policy gradient in which the clipped ratio only weights the log-probability.

    Clipped tokens still have a gradient, and ratios below 1 are not clipped (MiniMax 2025,
    arXiv:2506.13585, equation 4).
    """

    kind: Literal["CISPO"] = "CISPO"

    @property
    def per(self) -> str:
        """The denominator: tokens of all completions."""
        return TOKENS

    def compute_losses(self, ratio_BT: Tensor, log_BT: Tensor, advantages: Tensor) -> Tensor:
        """Return the log-probabilities weighted by clipped ratio and advantage."""
        weight_BT = ratio_BT.detach().clamp(max=1 + self.clip_high)
        return -weight_BT * advantages * log_BT


class GSPO(ClippedPolicy):
    """Policy gradient with the ratio of whole completions, the geometric mean over their tokens.

    Zheng et al. 2025, arXiv:2507.18071, equations 5 and 7. Clip ranges are much narrower than those
    of token ratios.
    """

    kind: Literal["GSPO"] = "GSPO"
    # how far below 1 a ratio may be (section 5.1)
    clip_low: float = Field(default=3e-4, gt=0, lt=1)
    # how far above 1 a ratio may be
    clip_high: float = Field(default=4e-4, gt=0, allow_inf_nan=False)

    def compute_ratios(self, change_BT: Tensor, mask_BT: Tensor) -> Tensor:
        """Return ratios [B, T] that are equal for all tokens of a completion."""
        mean_B1 = (change_BT * mask_BT).sum(1, keepdim=True) / mask_BT.sum(1, keepdim=True)
        return mean_B1.exp().expand_as(change_BT)
