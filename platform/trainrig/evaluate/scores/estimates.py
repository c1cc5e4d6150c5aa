"""Scores with standard errors, and paired differences with intervals.

Rows are a sample of what a task could ask, so a score is an estimate (Miller 2024, "Adding error
bars to evals", arXiv:2411.00640). Rows of one group, such as questions on one passage, are drawn
together, and their errors add up before they are squared.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

LEVEL = 0.95  # of intervals


@dataclass(frozen=True)
class Estimate:
    """A score and how far it would move with other rows."""

    value: float
    error: float | None  # standard error; None of a single row or group
    rows: int
    groups: int  # independent draws: groups of rows, or rows

    @property
    def interval(self) -> tuple[float, float] | None:
        """Bounds that hold the score of the whole task in 95 of 100 samples (Student's t)."""
        if self.error is None:
            return None
        reach = float(stats.t.ppf((1 + LEVEL) / 2, self.groups - 1)) * self.error
        return self.value - reach, self.value + reach


def estimate(
    values: Sequence[float],
    weights: Sequence[float] | None = None,
    groups: Sequence[str | None] | None = None,
) -> Estimate:
    """The sum of `values` over that of `weights` (1 each: their mean), and its standard error.

    Rows with no group stand for themselves. The error of a ratio is that of its linear
    approximation, from what each row is off by.
    """
    values_R = np.asarray(values, float)
    weights_R = np.ones_like(values_R) if weights is None else np.asarray(weights, float)
    total = float(weights_R.sum())
    ratio = float(values_R.sum()) / total if total else 0.0
    off_G = _sum_by_group(values_R - ratio * weights_R, groups)
    count = len(off_G)
    if count < 2 or not total:
        return Estimate(ratio, None, len(values_R), count)
    variance = float((off_G**2).sum()) * count / (count - 1)
    return Estimate(ratio, math.sqrt(variance) / total, len(values_R), count)


def _sum_by_group(
    off_R: NDArray[np.float64], groups: Sequence[str | None] | None
) -> NDArray[np.float64]:
    if groups is None:
        return off_R
    names = [f"row {n}" if g is None else f"group {g}" for n, g in enumerate(groups)]
    _, places = np.unique(names, return_inverse=True)
    return np.bincount(places, weights=off_R).astype(np.float64)


def bound_unseen_share(draws: int) -> float:
    """The largest share that `draws` may all have missed: Clopper and Pearson's bound at 0.

    Rows that are all wrong, or all right, have no spread to compute an error by.
    """
    return float(1 - ((1 - LEVEL) / 2) ** (1 / draws))


@dataclass(frozen=True)
class PairedDifference:
    """How much better B is than A on the same rows."""

    difference: Estimate
    a_only: int  # rows on which A alone is right
    b_only: int

    @property
    def within_noise(self) -> bool:
        """Whether 0 lies in the difference's interval, or there is none."""
        bounds = self.difference.interval
        return bounds is None or bounds[0] <= 0 <= bounds[1]


def estimate_paired_difference(
    a: Sequence[float], b: Sequence[float], groups: Sequence[str | None] | None = None
) -> PairedDifference:
    """The mean of B less A, row by row; `a` and `b` are of the same rows in one order."""
    off = [y - x for x, y in zip(a, b, strict=True)]
    better = sum(each > 0 for each in off)
    return PairedDifference(estimate(off, groups=groups), sum(each < 0 for each in off), better)


def estimate_shuffled_band(
    chosen: Sequence[int], gold: Sequence[int], choices: Sequence[int], share: float = 0.99
) -> tuple[float, float]:
    """The bounds that hold `share` of the scores of these answers against shuffled labels.

    Labels are shuffled among rows of as many choices, 2,000 times: what answers of this kind get
    that know nothing of the questions.
    """
    chosen_R, gold_R, choices_R = (np.asarray(each) for each in (chosen, gold, choices))
    dice = np.random.default_rng(0)
    right = np.zeros(2000, dtype=np.int64)
    for count in np.unique(choices_R):
        rows = np.flatnonzero(choices_R == count)
        mine, labels = chosen_R[rows], gold_R[rows]
        for trial in range(len(right)):
            right[trial] += int((mine == dice.permutation(labels)).sum())
    tail = (1 - share) / 2
    low, high = np.quantile(right / len(chosen_R), [tail, 1 - tail], method="nearest")
    return float(low), float(high)
