"""How far one model has gone from another, and what holds it back."""

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
LARGEST_DIFFERENCE = 20.0  # nats, of log-probabilities; of estimates with a bound, as verl has it


class AdaptiveWeight(Settings):
    """Moves the weight of the divergence towards where a target is met (Ziegler et al. 2019,
    arXiv:1909.08593, section 2.2)."""

    target: float = Field(gt=0, allow_inf_nan=False)  # nats a completion, by k1
    # Completions over which the weight is multiplied by 1 more than the error: a small one is fast.
    horizon: float = Field(default=10_000, gt=0, allow_inf_nan=False)
    # Largest error, as a share of the target, that counts.
    largest_error: float = Field(default=0.2, gt=0, allow_inf_nan=False)

    def compute_next_weight(self, weight: float, divergence: float, completions: int) -> float:
        """The weight after a batch of `completions` with a mean `divergence`, had it `weight`."""
        error = divergence / self.target - 1
        error = max(-self.largest_error, min(self.largest_error, error))
        return weight * max(0.0, 1 + error * completions / self.horizon)


class ReferenceDivergence(Settings):
    """How the policy is held to the model that it began with."""

    # Of the divergence, beside the reward; with `adaptive`, that of the first batch.
    weight: float = Field(gt=0, allow_inf_nan=False)
    # Have the weight move from batch to batch; None: it stays.
    adaptive: AdaptiveWeight | None = None
    # How it is estimated of one token, d the log-probability less the reference's: "k1" d, "k2"
    # d²/2, "k3" exp(-d) - 1 + d (Schulman 2020, http://joschu.net/blog/kl-approx.html).
    estimator: Estimator = "k3"
    # "loss": a term of its own. "reward": taken off the reward of a completion, summed over its
    # tokens, before advantages are made.
    place: Literal["loss", "reward"] = "loss"
    # Whether, in the loss, each token's estimate is multiplied by its ratio: without, the gradient
    # of k1 is 0 on average, and that of k3 is of another divergence than is meant.
    unbiased: bool = True
    # Most nats that the estimate of one token comes to, either way; a token beyond has no gradient.
    # verl takes 10. k3 grows as exp(-d): 10^13 for a token 30 nats below the reference. None: no
    # bound, so that a token pulls back the harder the farther it has gone.
    bound: float | None = Field(default=None, gt=0, le=LARGEST_DIFFERENCE)

    def estimate(self, difference: Numbers) -> Numbers:
        """Return the estimate of each token, within the bound, by the log-probability less the
        reference's."""
        if self.bound is None:
            return estimate_divergence(self.estimator, difference)
        # Bounded first, or an infinite estimate would have a gradient that is no number.
        within = difference.clip(-LARGEST_DIFFERENCE, LARGEST_DIFFERENCE)
        return estimate_divergence(self.estimator, within).clip(-self.bound, self.bound)

    def is_beyond_bound(self, difference: Numbers) -> Numbers:
        """Return for each token whether its estimate is cut by the bound."""
        assert self.bound is not None
        return abs(estimate_divergence(self.estimator, difference)) > self.bound


def estimate_divergence(estimator: Estimator, difference: Numbers) -> Numbers:
    """The estimate of each token, in nats, by the log-probability less that of the other model."""
    if estimator == "k1":
        return difference
    estimate: Numbers = (
        difference**2 / 2 if estimator == "k2" else math.e ** (-difference) - 1 + difference
    )
    return estimate
