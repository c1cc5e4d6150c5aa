"""Policy gradients with baselines from other answers: the GRPO family, RLOO and REINFORCE++.

GRPO has the variants Dr. GRPO, DAPO, CISPO and GSPO. RLOO leaves one out of a group; REINFORCE++
normalises over the global batch.

Shapes: B completions of a micro-batch, T positions, G prompts, S completions of each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from trainrig.objectives.objective_interface import DeviceBatch
from trainrig.objectives.policy.policy_gradient import ClippedPolicy, Floats, PolicyGradient, centre
from trainrig.tokens import batches

if TYPE_CHECKING:
    from torch import Tensor, nn


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

    per: ClassVar[str] = batches.LIMIT_TOKENS

    kind: Literal["DrGRPO"] = "DrGRPO"

    def compute_advantages(self, rewards_GS: Floats) -> Floats:
        """Return the rewards minus the group's mean."""
        return centre(rewards_GS)


class DAPO(ClippedPolicy):
    """GRPO in which all tokens count equally and the ratio of rare tokens may rise further.

    With `rollouts.waves`, prompts whose completions all have the same reward are dropped and others
    are drawn (Yu et al. 2025, arXiv:2503.14476, equation 8).
    """

    per: ClassVar[str] = batches.TOKENS

    kind: Literal["DAPO"] = "DAPO"
    # How far above 1 the probability ratio of a token may be before it is clipped (section 4.1).
    clip_high: float = Field(default=0.28, gt=0, allow_inf_nan=False)


class CISPO(PolicyGradient):
    """Policy gradient in which the clipped ratio only weights the log-probability.

    Clipped tokens still have a gradient, and ratios below 1 are not clipped (MiniMax 2025,
    arXiv:2506.13585, equation 4).
    """

    per: ClassVar[str] = batches.TOKENS

    kind: Literal["CISPO"] = "CISPO"

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


VARIANCE_FLOOR = 1e-8  # added to variances, as in verl


class RLOO(ClippedPolicy):
    """REINFORCE whose baseline is the mean reward of the prompt's other completions.

    A completion is one action, and its ratio is that of all its tokens (Ahmadian et al. 2024,
    arXiv:2402.14740, section 2.3).
    """

    kind: Literal["RLOO"] = "RLOO"

    def compute_advantages(self, rewards_GS: Floats) -> Floats:
        """Return the rewards minus the mean of the other completions."""
        count = rewards_GS.shape[1]
        advantages_GS: Floats = centre(rewards_GS) * (count / (count - 1))
        return advantages_GS

    def compute_ratios(self, change_BT: Tensor, mask_BT: Tensor) -> Tensor:
        """Return ratios [B, T] that are equal for all tokens of a completion."""
        return (change_BT * mask_BT).sum(1, keepdim=True).exp().expand_as(change_BT)


class ReinforcePlusPlus(ClippedPolicy):
    """REINFORCE++: advantages normalised over all tokens of the global batch, not within a group.

    Hu et al. 2025, arXiv:2501.03262, section 3, as implemented in verl. A token's advantage is the
    completion's reward, minus the divergence penalties of the token and those after it, if they are
    in the reward. A completion has as much weight as it has tokens.
    """

    per: ClassVar[str] = batches.TOKENS

    kind: Literal["ReinforcePlusPlus"] = "ReinforcePlusPlus"
    # Baseline that is subtracted from rewards first: none, or the mean of the group ("-baseline" in
    # the paper).
    baseline: Literal["none", "group"] = "none"

    @property
    def compares_completions(self) -> bool:
        """True with the baseline of a group."""
        return self.baseline != "none"

    @property
    def statistics(self) -> tuple[str, ...]:
        """The sums of the tokens' advantages and of their squares, and the number of tokens."""
        return ("advantages", "squares", "tokens")

    def measure(self, model: nn.Module, batch: DeviceBatch) -> Mapping[str, Tensor]:
        """Return the sums of advantages and of their squares, and the number of tokens."""
        mask_BT = batch.arrays[batches.TARGETS] != batches.IGNORE
        advantages_BT = _read_raw(batch.arrays).double() * mask_BT
        squares = advantages_BT.square().sum()
        tokens = mask_BT.sum().double()
        return {"advantages": advantages_BT.sum(), "squares": squares, "tokens": tokens}

    def compute_advantages(self, rewards_GS: Floats) -> Floats:
        """Return the rewards, minus the group's mean if that is the baseline."""
        return centre(rewards_GS) if self.baseline == "group" else rewards_GS

    def credit(
        self,
        rewards_GS: Floats,
        mask_BT: NDArray[np.bool_],
        penalties_BT: Floats | None,
        values_BT: Floats | None,
    ) -> dict[str, NDArray[np.float32]]:
        """Return the batch arrays with rewards and advantages. See `PolicyGradient`.

        With the group as baseline, the penalties of all tokens count for the completion as a whole.
        """
        found = super().credit(rewards_GS, mask_BT, penalties_BT, values_BT)
        if penalties_BT is None or self.baseline == "group":
            return found
        ahead_BT = penalties_BT[:, ::-1].cumsum(1)[:, ::-1]
        returns_BT = (rewards_GS.reshape(-1, 1) - ahead_BT) * mask_BT
        return found | {batches.TOKEN_ADVANTAGES: returns_BT.astype(np.float32)}

    def read_advantages(
        self, arrays: Mapping[str, Tensor], statistics: Mapping[str, float]
    ) -> Tensor:
        """Return advantages, normalised over the tokens of the global batch: [B, 1] or [B, T]."""
        count = statistics["tokens"]
        mean = statistics["advantages"] / count
        spread = max(0.0, statistics["squares"] / count - mean**2)
        variance = spread * count / max(1.0, count - 1)  # the sample variance
        return (_read_raw(arrays) - mean) / math.sqrt(variance + VARIANCE_FLOOR)


def _read_raw(arrays: Mapping[str, Tensor]) -> Tensor:
    """Return the advantages [B, 1] of completions, or [B, T] if each token has its own."""
    if batches.TOKEN_ADVANTAGES in arrays:
        return arrays[batches.TOKEN_ADVANTAGES]
    return arrays[batches.ADVANTAGES][:, None]
