"""Optimal experimental design: the trials that predict the loss of a larger run best for a budget.

The criterion is Bayesian c-optimality: the variance of the predicted log loss at the target, for a
law that is linearised in its constants (Elfving 1952, Annals of Mathematical Statistics 23;
Chaloner and Verdinelli 1995, Statistical Science 10, section 4). Published laws disagree, so the
logarithm of this variance is averaged over several laws. Trials are added one at a time: always the
one that lowers the mean most for its cost. So a design can be extended, and its first trials stay
the same.

No form holds exactly over a large range. So a run also differs from the law that holds at the
target by an error that grows with the logarithm of the distance in compute, as a random walk does.
Runs of equal compute share this error, so repeating a small run does not replace a larger one.

Shapes: L laws, R runs of a trial, P quantities that are learnt: 5 constants of a law, then the
random walk's steps.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trainrig.scaling.laws.law_forms import Array, Parametric

# Standard deviations of the constants before any run: of ln E, ln a, ln b, alpha and beta, where a
# and b are the other two terms of the loss at the target. Published exponents lie between .18 and
# .46 (docs/evidence/scaling-laws.md).
PRIOR_DEVIATIONS = (0.5, 1.0, 1.0, 0.1, 0.1)
# Share of the noise's variance that all runs of one trial have in common: they share their first
# steps.
SHARED_NOISE = 0.5
# Standard deviation of the form's error in log loss at e times less compute than the target's. At a
# factor of 10 to 50 it is 1%, as the errors of forms on published runs
# (docs/evidence/scaling-laws.md, "A zoo of laws").
FORM_ERROR = 0.005
# Step of the random walk, in the logarithm of compute, and its farthest point: 16 million times.
WALK_STEP = math.log(2)
WALK_STEPS = 24


@dataclass(frozen=True)
class CandidateTrial:
    """Trial that a design may contain: a model, its runs of several lengths, and their cost."""

    parameters: float  # N
    tokens: tuple[float, ...]  # D of each run, in ascending order
    cost: float  # FLOPs of all runs together


class TargetKnowledge:
    """Knowledge about the loss at a target that trials give, under each of several laws."""

    def __init__(
        self, laws: Sequence[Parametric], parameters: float, tokens: float, noise: float
    ) -> None:
        """Begin with the prior alone, for a target of N `parameters` and D `tokens`.

        `noise` is the standard deviation of the log loss of one run.
        """
        self._laws = laws
        self._parameters = parameters
        self._tokens = tokens
        self._noise = noise
        self._gradients = self._differentiate(parameters, (tokens,))[:, 0]  # [L, P]
        walk = np.full(WALK_STEPS, FORM_ERROR**2 * WALK_STEP)
        prior = np.diag(np.concatenate([np.square(PRIOR_DEVIATIONS), walk]))
        self._covariances = np.stack([prior for _ in laws])  # [L, P, P]
        self.sizes: set[float] = set()  # N of all trials

    @property
    def variances(self) -> Array:
        """The variance [L] of the expected log loss at the target."""
        across = np.einsum("lpq,lq->lp", self._covariances, self._gradients)
        return np.asarray(np.einsum("lp,lp->l", self._gradients, across))

    def measure_gain(self, trial: CandidateTrial) -> float:
        """Measure how much `trial` lowers the logarithm of the variance, averaged over the laws."""
        toward, spread = self._project(trial)
        known = np.einsum("lr,lrs,ls->l", toward, np.linalg.inv(spread), toward)
        return float(-np.mean(np.log1p(-known / self.variances)))

    def add(self, trial: CandidateTrial) -> None:
        """Add what the runs of `trial` will tell."""
        self.sizes.add(trial.parameters)
        slopes = self._differentiate(trial.parameters, trial.tokens)
        _, spread = self._project(trial)
        gain = self._covariances @ slopes.transpose(0, 2, 1) @ np.linalg.inv(spread)
        reduced = self._covariances - gain @ slopes @ self._covariances
        self._covariances = (reduced + reduced.transpose(0, 2, 1)) / 2

    def _project(self, trial: CandidateTrial) -> tuple[Array, Array]:
        """Return the covariances of runs with the target [L, R], and among runs [L, R, R]."""
        slopes = self._differentiate(trial.parameters, trial.tokens)
        across = slopes @ self._covariances
        count = len(trial.tokens)
        noise = (1 - SHARED_NOISE) * np.eye(count) + SHARED_NOISE * np.ones((count, count))
        spread = across @ slopes.transpose(0, 2, 1) + self._noise**2 * noise
        return np.einsum("lrp,lp->lr", across, self._gradients), spread

    def _differentiate(self, parameters: float, tokens: Sequence[float]) -> Array:
        """Return the derivatives [L, R, P] of the log loss by the constants of each law."""
        lengths = np.asarray(tokens, dtype=float)
        less = np.log(self._parameters * self._tokens / (parameters * lengths)) / WALK_STEP
        walked = np.clip(less[:, None] - np.arange(WALK_STEPS), 0, 1)  # share of each step
        slopes = []
        for law in self._laws:
            of_size = law.A * parameters**-law.alpha * np.ones_like(lengths)
            of_tokens = law.B * lengths**-law.beta
            floor = law.E * np.ones_like(lengths)
            terms = [
                floor,
                of_size,
                of_tokens,
                -of_size * np.log(parameters / self._parameters),
                -of_tokens * np.log(lengths / self._tokens),
            ]
            constants = np.stack(terms, axis=-1) / (floor + of_size + of_tokens)[:, None]
            slopes.append(np.concatenate([constants, walked], axis=-1))
        return np.stack(slopes)


def extend_design(
    knowledge: TargetKnowledge,
    candidates: Sequence[CandidateTrial],
    budget: float,
    share: float,
    least_sizes: int,
    most_trials: int,
) -> list[int]:
    """Choose up to `most_trials` of `candidates` that cost at most `budget` FLOPs, best first.

    No trial costs more than `share` of the budget. A trial may be chosen several times, which
    repeats it with other seeds. Each of the first `least_sizes` trials of a design has another
    size, and leaves an equal part of the budget to the others. `knowledge` is updated. Returns the
    chosen positions.
    """
    chosen: list[int] = []
    left = budget
    while len(chosen) < most_trials:
        missing = max(0, least_sizes - len(knowledge.sizes))
        most = min(left / max(1, missing), share * budget)
        affordable = [
            place
            for place, trial in enumerate(candidates)
            if trial.cost <= most and not (missing and trial.parameters in knowledge.sizes)
        ]
        if not affordable:
            break
        gains = [
            knowledge.measure_gain(candidates[place]) / candidates[place].cost
            for place in affordable
        ]
        best = affordable[int(np.argmax(gains))]
        knowledge.add(candidates[best])
        left -= candidates[best].cost
        chosen.append(best)
    return chosen
