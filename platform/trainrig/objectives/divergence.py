"""Divergence of a policy from its reference model: estimators and settings."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from numpy.typing import NDArray
from pydantic import Field

from trainrig.config import Settings

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
