"""How well a regression orders mixtures it was not fitted to, and how far off it is.

Shapes: R runs, S sources, T targets.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from trainrig.scaling.mixture.mean_of_targets import MeanLaw, MeanProcess
from trainrig.scaling.mixture.runs import Array

FOLDS = 5


@dataclass(frozen=True, eq=False)
class PredictedLosses:
    """Losses that were predicted, beside those that came. Nats per token."""

    predicted: Array  # [R]
    actual: Array  # [R]

    @property
    def rank_correlation(self) -> float:
        """Spearman's: 1 where the order is right throughout. NaN where all are equal."""
        return correlation(compute_ranks(self.predicted), compute_ranks(self.actual))

    @property
    def error(self) -> float:
        """The root of the mean square of the error, nats per token."""
        return float(np.sqrt(np.mean((self.predicted - self.actual) ** 2)))


def compute_ranks(values: ArrayLike) -> Array:
    """The rank of each value from 0; equal values share the mean of theirs."""
    _, place, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    after = counts.cumsum()
    return np.asarray((after - (counts + 1) / 2)[place], dtype=np.float64)


def correlation(a: Array, b: Array) -> float:
    """Pearson's; NaN where one of them does not vary."""
    a, b = a - a.mean(), b - b.mean()
    scale = np.sqrt((a @ a) * (b @ b))
    return float(a @ b / scale) if scale else float("nan")


def leave_one_out(process: MeanProcess, losses: Array) -> PredictedLosses:
    """Each run as the process of the others predicts it, by the scales that fitted all."""
    actual = losses.mean(axis=1)
    return PredictedLosses(actual - process.compute_residuals(), actual)


def cross_validate_law(shares: Array, losses: Array, seed: int) -> PredictedLosses:
    """Each run as predicted by mixing laws fitted to the other FOLDS - 1 parts of the runs."""
    order = np.random.default_rng(seed).permutation(len(losses))
    predicted = np.empty(len(losses))
    for fold in range(FOLDS):
        kept = order[fold::FOLDS]
        others = np.setdiff1d(order, kept)
        predicted[kept] = MeanLaw.fit(shares[others], losses[others]).expect(shares[kept])
    return PredictedLosses(predicted, losses.mean(axis=1))
