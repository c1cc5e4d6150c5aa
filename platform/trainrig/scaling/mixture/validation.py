"""Scores of a regression on mixtures that it was not fitted to: ranking and error.

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
    """Predicted losses of runs with their measured losses, in nats per token."""

    predicted: Array  # [R]
    actual: Array  # [R]

    @property
    def rank_correlation(self) -> float:
        """Spearman's rank correlation, 1 for the same order; NaN if the values do not vary."""
        return compute_correlation(compute_ranks(self.predicted), compute_ranks(self.actual))

    @property
    def error(self) -> float:
        """Root mean square error, in nats per token."""
        return float(np.sqrt(np.mean((self.predicted - self.actual) ** 2)))


def compute_ranks(values: ArrayLike) -> Array:
    """Return the rank of each value, counted from 0; equal values share their mean rank."""
    _, inverse, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    end_ranks = counts.cumsum()
    return np.asarray((end_ranks - (counts + 1) / 2)[inverse], dtype=np.float64)


def compute_correlation(a: Array, b: Array) -> float:
    """Return Pearson's correlation of two vectors, or NaN where one of them does not vary."""
    a = a - a.mean()
    b = b - b.mean()
    scale = np.sqrt((a @ a) * (b @ b))
    return float(a @ b / scale) if scale else float("nan")


def predict_left_out(process: MeanProcess, losses: Array) -> PredictedLosses:
    """Return the loss of each run as predicted from all other runs.

    The length scales and the noise are those of the fit to all runs.
    """
    actual = losses.mean(axis=1)
    return PredictedLosses(actual - process.compute_residuals(), actual)


def cross_validate_law(shares: Array, losses: Array, seed: int) -> PredictedLosses:
    """Return the loss of each run as predicted by mixing laws fitted to the other folds."""
    order = np.random.default_rng(seed).permutation(len(losses))
    predicted = np.empty(len(losses))
    for fold in range(FOLDS):
        held_out = order[fold::FOLDS]
        others = np.setdiff1d(order, held_out)
        predicted[held_out] = MeanLaw.fit(shares[others], losses[others]).expect(shares[held_out])
    return PredictedLosses(predicted, losses.mean(axis=1))
