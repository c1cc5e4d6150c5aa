"""Divergence of a policy from its reference model, and diagnostics of a policy during training.

Estimators and settings of the divergence are part of the loss; the diagnostics are not.

Shapes: B completions of a micro-batch, T positions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from numpy.typing import NDArray
from pydantic import Field

from trainrig.config import Settings
from trainrig.objectives.objective_interface import Contributions, DeviceBatch, average_rows
from trainrig.tokens import batches

if TYPE_CHECKING:  # run files are read without torch, which takes seconds to import
    from torch import Tensor

    Numbers = TypeVar("Numbers", NDArray[Any], Tensor)
else:
    Numbers = TypeVar("Numbers")

Estimator = Literal["k1", "k2", "k3"]
# nats; limit on differences of log-probabilities before bounded estimates, as in verl
LARGEST_DIFFERENCE = 20.0


class AdaptiveWeight(Settings):
    """Controller that moves the weight of the divergence until a target divergence is met.

    Ziegler et al. 2019, arXiv:1909.08593, section 2.2.
    """

    # target divergence in nats per completion, by the k1 estimate
    target: float = Field(gt=0, allow_inf_nan=False)
    # Number of completions over which the weight is multiplied by 1 + error; a smaller number
    # adapts faster.
    horizon: float = Field(default=10_000, gt=0, allow_inf_nan=False)
    # Limit on the error, as a share of the target.
    largest_error: float = Field(default=0.2, gt=0, allow_inf_nan=False)

    def compute_next_weight(self, weight: float, divergence: float, completions: int) -> float:
        """Return the weight after a batch of `completions` completions with mean `divergence`."""
        error = divergence / self.target - 1
        error = max(-self.largest_error, min(self.largest_error, error))
        return weight * max(0.0, 1 + error * completions / self.horizon)


class ReferenceDivergence(Settings):
    """Divergence penalty that holds the policy to the model it began with."""

    # Weight of the divergence relative to the reward; with `adaptive`, the weight for the first
    # batch.
    weight: float = Field(gt=0, allow_inf_nan=False)
    # Adapt the weight from batch to batch. None: the weight is constant.
    adaptive: AdaptiveWeight | None = None
    # Estimator of the divergence of one token, with d the log-probability minus the reference's:
    # "k1" is d, "k2" is d²/2, "k3" is exp(-d) - 1 + d (Schulman 2020,
    # http://joschu.net/blog/kl-approx.html).
    estimator: Estimator = "k3"
    # "loss": a separate loss term. "reward": subtracted from the reward of a completion, summed
    # over its tokens, before advantages are computed.
    place: Literal["loss", "reward"] = "loss"
    # Whether to multiply each token's estimate in the loss by its probability ratio. Without it,
    # the expected gradient of k1 is 0, and k3's gradient belongs to a different divergence.
    unbiased: bool = True
    # Bound on the estimate of one token, in nats, in both directions; a token beyond it has no
    # gradient. verl uses 10. k3 grows as exp(-d): 10^13 for a token 30 nats below the reference.
    # None: no bound, so that a token is pulled back harder the farther it is.
    bound: float | None = Field(default=None, gt=0, le=LARGEST_DIFFERENCE)

    def estimate(self, difference: Numbers) -> Numbers:
        """Return the estimate of each token's divergence, within the bound.

        `difference`: log-probability minus the reference's, in nats.
        """
        if self.bound is None:
            return estimate_divergence(self.estimator, difference)
        # The difference is bounded first, because an infinite estimate would have a NaN gradient.
        within = difference.clip(-LARGEST_DIFFERENCE, LARGEST_DIFFERENCE)
        return estimate_divergence(self.estimator, within).clip(-self.bound, self.bound)

    def is_beyond_bound(self, difference: Numbers) -> Numbers:
        """Return for each token whether its estimate is cut by the bound."""
        assert self.bound is not None
        return abs(estimate_divergence(self.estimator, difference)) > self.bound


def estimate_divergence(estimator: Estimator, difference: Numbers) -> Numbers:
    """Return the estimate of each token's divergence, in nats.

    `difference`: log-probability minus that under the other model.
    """
    if estimator == "k1":
        return difference
    estimate: Numbers = (
        difference**2 / 2 if estimator == "k2" else math.e ** (-difference) - 1 + difference
    )
    return estimate


@dataclass(frozen=True)
class PolicyTokens:
    """The policy's values at each token of a micro-batch."""

    log_BT: Tensor  # log-probabilities
    change_BT: Tensor  # change of log-probabilities since sampling
    ratio_BT: Tensor  # probability ratios
    advantages: Tensor  # [B, 1], or [B, T] where each token has its own
    entropy_BT: Tensor


def watch_policy(
    batch: DeviceBatch, seen: PolicyTokens, clip_low: float, clip_high: float
) -> dict[str, Contributions]:
    """Return the diagnostics of a micro-batch by name.

    `clip_low` and `clip_high`: how far from 1 a ratio may be.
    """
    arrays = batch.arrays
    mask_BT = arrays[batches.TARGETS] != batches.IGNORE
    change_BT = seen.change_BT.detach()
    high = (seen.ratio_BT > 1 + clip_high) & (seen.advantages > 0)
    low = (seen.ratio_BT < 1 - clip_low) & (seen.advantages < 0)
    gap_BT = (arrays[batches.SAMPLED] - arrays.get(batches.BEHAVIOUR, arrays[batches.OLD])).abs()
    found = _watch_completions(batch, mask_BT) | {
        "entropy": _average_tokens(seen.entropy_BT, mask_BT),
        "clipped_high": _average_tokens(high, mask_BT),
        "clipped_low": _average_tokens(low, mask_BT),
        "policy_change": _average_tokens(estimate_divergence("k3", -change_BT), mask_BT),
        "sampler_gap": _average_tokens(gap_BT, mask_BT),
    }
    if batches.IMPORTANCE in arrays:
        weight_BT = arrays[batches.IMPORTANCE]
        found["importance"] = _average_tokens(weight_BT, mask_BT)
        at_limit_BT = weight_BT >= arrays[batches.IMPORTANCE_LIMIT][:, None]
        found["importance_truncated"] = _average_tokens(at_limit_BT, mask_BT)
    if batches.STALENESS in arrays:
        found |= _watch_staleness(batch, mask_BT)
    if batches.REFERENCE_TOKENS in arrays:
        found |= _watch_reference(batch, seen.log_BT, mask_BT)
    if batches.WAVES in arrays:
        found |= average_rows(waves=arrays[batches.WAVES].double())
    if batches.TURNS in arrays:
        found |= average_rows(turns=arrays[batches.TURNS].double())
    if batches.DIVERGENCE_WEIGHT in arrays:
        found |= average_rows(divergence_weight=arrays[batches.DIVERGENCE_WEIGHT].double())
    return found


def watch_bound(
    batch: DeviceBatch, seen: PolicyTokens, reference: ReferenceDivergence
) -> dict[str, Contributions]:
    """Return the share of tokens whose divergence from the reference is cut by its bound."""
    arrays = batch.arrays
    log_BT = arrays[batches.OLD] if reference.place == "reward" else seen.log_BT.detach()
    beyond_BT = reference.is_beyond_bound(log_BT - arrays[batches.REFERENCE_TOKENS])
    return {
        "divergence_bounded": _average_tokens(beyond_BT, arrays[batches.TARGETS] != batches.IGNORE)
    }


def _average_tokens(values_BT: Tensor, mask_BT: Tensor) -> Contributions:
    return Contributions(values_BT.detach().float() * mask_BT, mask_BT.sum(1))


def _watch_completions(batch: DeviceBatch, mask_BT: Tensor) -> dict[str, Contributions]:
    """Return the diagnostics of whole completions: rewards, advantages and lengths."""
    arrays = batch.arrays
    return average_rows(
        reward=arrays[batches.REWARDS].double(),
        advantage=arrays[batches.ADVANTAGES].abs().double(),
        completion_tokens=mask_BT.sum(1).double(),
        finished=arrays[batches.FINISHED].double(),
        flat=arrays[batches.FLAT].double(),
        reward_faults=arrays[batches.REWARD_FAULTS].double(),
        # Batches that earlier versions stored lack these two.
        **{
            name: arrays[name].double()
            for name in (batches.DISTINCT, batches.SHARED)
            if name in arrays
        },
        **{
            f"reward_{name.removeprefix(batches.REWARD_PART)}": arrays[name].double()
            for name in sorted(arrays)
            if name.startswith(batches.REWARD_PART)
        },
    )


def _watch_staleness(batch: DeviceBatch, mask_BT: Tensor) -> dict[str, Contributions]:
    """Return the diagnostics of the age of the weights that sampled the tokens."""
    stale_BT = batch.arrays[batches.STALENESS]
    newest_B = stale_BT.masked_fill(~mask_BT, stale_BT.max()).amin(1)
    return {
        "staleness": _average_tokens(stale_BT, mask_BT),
        "stale_tokens": _average_tokens(stale_BT > 0, mask_BT),
        **average_rows(
            partial=(newest_B < stale_BT.amax(1)).double(),
            unfinished=batch.arrays[batches.UNFINISHED].double(),
        ),
    }


def _watch_reference(
    batch: DeviceBatch, log_BT: Tensor, mask_BT: Tensor
) -> dict[str, Contributions]:
    """Return the diagnostics of the policy's divergence from the model it began with."""
    arrays = batch.arrays
    away_BT = log_BT.detach() - arrays[batches.REFERENCE_TOKENS]
    # For the weights that sampled, so it is the same in all updates from this batch.
    sampled_BT = (arrays[batches.OLD] - arrays[batches.REFERENCE_TOKENS]) * mask_BT
    return {
        "reference_divergence": _average_tokens(estimate_divergence("k3", away_BT), mask_BT),
        **average_rows(completion_divergence=sampled_BT.double().sum(1)),
    }
