"""Policy gradients: learning from rewards of the model's own answers.

The completions of one prompt form a group, and the advantage of a completion compares its reward
with the others'. The probability ratio of a token is its probability under the current weights over
that under the weights that sampled it. The ratio is clipped, so that several updates can use one
batch of rollouts (Schulman et al. 2017, arXiv:1707.06347, equation 7).

Shapes: B completions of a micro-batch, T positions, G prompts, S completions of each.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from trainrig.objectives.objective_interface import Computed, Contributions, DeviceBatch, Term
from trainrig.objectives.objective_settings import ObjectiveSettings, Rows
from trainrig.objectives.policy import policy_divergence
from trainrig.tokens import batches

if TYPE_CHECKING:  # run files are read without torch, which takes seconds to import
    from torch import Tensor, nn

POLICY = "policy"
DIVERGENCE = "divergence"
Floats = NDArray[np.float64]
# Added to standard deviations, as in TRL, so that tiny differences within a group are not
# amplified.
SPREAD_FLOOR = 1e-4


class PolicyGradient(ObjectiveSettings):
    """Base of clipped policy gradients."""

    rows: ClassVar[Rows] = "sampled"
    # Whether a critic is trained beside the model.
    needs_critic: ClassVar[bool] = False
    # Denominator: completions, tokens of all completions, or their maximum number.
    per: ClassVar[str] = batches.EXAMPLES

    kind: str
    # How far below 1 the probability ratio of a token may be before it is clipped.
    clip_low: float = Field(default=0.2, gt=0, lt=1)
    # How far above 1 the ratio may be before it is clipped. DAPO uses more than `clip_low`, so that
    # rare tokens can become likely.
    clip_high: float = Field(default=0.2, gt=0, allow_inf_nan=False)
    # Penalty on divergence from the initial model. None: no penalty.
    reference: policy_divergence.ReferenceDivergence | None = None

    @property
    def terms(self) -> tuple[Term, ...]:
        """The policy's term, and the divergence's term if the divergence is in the loss."""
        found: tuple[Term, ...] = (Term(POLICY, per=self.per),)
        if self.reference and self.reference.place == "loss":
            # An adaptive weight is stored in the batch and holds for all updates from it.
            weight = 1.0 if self.reference.adaptive else self.reference.weight
            found += (Term(DIVERGENCE, per=self.per, weight=weight),)
        return found

    @property
    def compares_completions(self) -> bool:
        """True if the completions of a prompt are compared, so that it needs several."""
        return True

    @property
    def credits_teacher(self) -> bool:
        """True if the teacher reads a batch once, before its updates, instead of in each step."""
        return False

    def compute_advantages(self, rewards_GS: Floats) -> Floats:
        """Return the advantages [G, S] for the rewards [G, S] of the completions of G prompts."""
        spread_G1 = rewards_GS.std(axis=1, ddof=1, keepdims=True)
        advantages_GS: Floats = centre(rewards_GS) / (spread_G1 + SPREAD_FLOOR)
        return advantages_GS

    def credit(
        self,
        rewards_GS: Floats,
        mask_BT: NDArray[np.bool_],
        penalties_BT: Floats | None,
        values_BT: Floats | None,
    ) -> dict[str, NDArray[np.float32]]:
        """Return the batch arrays with the rewards and advantages of completions.

        `penalties_BT`: divergence penalty of each token, if it is in the reward. `values_BT`:
        predictions of a critic.
        """
        if penalties_BT is not None:
            rewards_GS = rewards_GS - penalties_BT.sum(1).reshape(rewards_GS.shape)
        found = {
            batches.REWARDS: rewards_GS,
            batches.ADVANTAGES: self.compute_advantages(rewards_GS),
        }
        return {name: array.reshape(-1).astype(np.float32) for name, array in found.items()}

    def begin_carried(self) -> Mapping[str, float]:
        """Return the initial weight of the divergence, if it is adaptive."""
        held = self.reference
        return {batches.DIVERGENCE_WEIGHT: held.weight} if held and held.adaptive else {}

    def carry(
        self,
        carried: Mapping[str, float],
        diagnostics: Mapping[str, float],
        denominators: Mapping[str, int],
    ) -> Mapping[str, float]:
        """Return the next weight of the divergence. See `Carrying`."""
        if not (self.reference and self.reference.adaptive):
            return carried
        away = diagnostics["completion_divergence"]
        completions = denominators[batches.EXAMPLES]
        weight = self.reference.adaptive.compute_next_weight(
            carried[batches.DIVERGENCE_WEIGHT], away, completions
        )
        return {batches.DIVERGENCE_WEIGHT: weight}

    @abstractmethod
    def compute_losses(self, ratio_BT: Tensor, log_BT: Tensor, advantages: Tensor) -> Tensor:
        """Return the loss [B, T] of each token.

        `log_BT` are log-probabilities with a gradient. `advantages` are [B, 1], or [B, T] if each
        token has its own.
        """

    def weigh(self, values_BT: Tensor, mask_BT: Tensor) -> Tensor:
        """Return the contribution [B, T] of each token to the sum that is divided by `per`."""
        weighed_BT = values_BT * mask_BT
        if self.per != batches.EXAMPLES:
            return weighed_BT
        return weighed_BT / mask_BT.sum(1, keepdim=True).clamp(min=1)

    def compute_ratios(self, change_BT: Tensor, mask_BT: Tensor) -> Tensor:
        """Return the probability ratios [B, T], from log-probability changes since sampling."""
        return change_BT.exp()

    def compute_importance(
        self, change_BT: NDArray[np.float32], mask_BT: NDArray[np.bool_], limit: float
    ) -> NDArray[np.float32]:
        """Return truncated importance weights [B, T]; 0 outside the mask.

        A weight is the ratio between the weights that training begins with and those that sampled,
        from the change of log-probabilities between them, and at most `limit` (Espeholt et al.
        2018, arXiv:1802.01561, section 4.1).
        """
        import torch

        mask = torch.from_numpy(mask_BT).float()
        ratio_BT = self.compute_ratios(torch.from_numpy(change_BT) * mask, mask)
        weights_BT: NDArray[np.float32] = (ratio_BT.clamp(max=limit) * mask).numpy()
        return weights_BT

    def compute(
        self, model: nn.Module, batch: DeviceBatch, statistics: Mapping[str, float]
    ) -> Computed:
        """Compute the loss of each completion of `batch`."""
        from trainrig.objectives.log_probabilities import read_tokens

        arrays = batch.arrays
        targets_BT = batch.arrays[batches.TARGETS]
        temperature = float(arrays[batches.TEMPERATURE][0])
        entries = int(arrays[batches.ENTRIES][0])
        read = read_tokens(model, arrays[batches.IDS], targets_BT, temperature, entries)
        mask_BT = (targets_BT != batches.IGNORE).float()
        log_BT = read.log_probabilities_BT
        change_BT = log_BT - arrays[batches.OLD]
        ratio_BT = self.compute_ratios(change_BT, mask_BT)
        advantages = self.read_advantages(arrays, statistics)
        losses_BT = self.compute_losses(ratio_BT, log_BT, advantages)
        if batches.IMPORTANCE in arrays:
            losses_BT = losses_BT * arrays[batches.IMPORTANCE]
        count_B = (targets_BT != batches.IGNORE).sum(1)
        counts_B = self._count_tokens(count_B, arrays)
        terms = {POLICY: Contributions(self.weigh(losses_BT, mask_BT).float(), counts_B)}
        if self.reference and self.reference.place == "loss":
            estimate_BT = self.reference.estimate(log_BT - arrays[batches.REFERENCE_TOKENS])
            if self.reference.unbiased:
                estimate_BT = estimate_BT * change_BT.exp()
            if self.reference.adaptive:
                estimate_BT = estimate_BT * arrays[batches.DIVERGENCE_WEIGHT][:, None]
            if batches.IMPORTANCE in arrays:
                estimate_BT = estimate_BT * arrays[batches.IMPORTANCE]
            terms[DIVERGENCE] = Contributions(self.weigh(estimate_BT, mask_BT).float(), counts_B)
        seen = policy_divergence.PolicyTokens(
            log_BT, change_BT, ratio_BT, advantages, read.entropy_BT
        )
        return Computed(terms, read.auxiliary, self.watch(batch, seen))

    def watch(
        self, batch: DeviceBatch, seen: policy_divergence.PolicyTokens
    ) -> dict[str, Contributions]:
        """Return the diagnostics of a micro-batch, by name."""
        found = policy_divergence.watch_policy(batch, seen, self.clip_low, self.clip_high)
        if self.reference and self.reference.bound is not None:
            found |= policy_divergence.watch_bound(batch, seen, self.reference)
        return found

    def read_advantages(
        self, arrays: Mapping[str, Tensor], statistics: Mapping[str, float]
    ) -> Tensor:
        """Return the advantages: [B, 1], or [B, T] if each token has its own."""
        return arrays[batches.ADVANTAGES][:, None]

    def _count_tokens(self, tokens_B: Tensor, arrays: Mapping[str, Tensor]) -> Tensor:
        import torch

        if self.per == batches.TOKENS:
            return tokens_B
        return (
            torch.ones_like(tokens_B)
            if self.per == batches.EXAMPLES
            else arrays[batches.LIMIT_TOKENS]
        )


class ClippedPolicy(PolicyGradient):
    """Policy gradient with the larger of the unclipped and clipped losses, as in PPO."""

    def compute_losses(self, ratio_BT: Tensor, log_BT: Tensor, advantages: Tensor) -> Tensor:
        """Return the larger of the unclipped and the clipped loss. See `PolicyGradient`."""
        import torch

        within_BT = ratio_BT.clamp(1 - self.clip_low, 1 + self.clip_high)
        return torch.maximum(-ratio_BT * advantages, -within_BT * advantages)


def centre(rewards_GS: Floats) -> Floats:
    """Return the rewards [G, S] minus the mean of their group."""
    centred: Floats = rewards_GS - rewards_GS.mean(axis=1, keepdims=True)
    return centred
