"""Standard errors of scores, paired differences with intervals, and calibration of confidence.

Rows are a sample of the questions that a task could ask, so a score is an estimate (Miller 2024,
"Adding error bars to evals", arXiv:2411.00640). Rows of one group, such as questions on one
passage, are sampled together: their errors are summed before they are squared (clustered errors).
Calibration compares a model's confidence with its accuracy.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from trainrig.corpus.array_types import Float64s

LEVEL = 0.95  # confidence level of intervals


@dataclass(frozen=True)
class Estimate:
    """A score with its standard error."""

    value: float
    error: float | None  # standard error; None for a single row or group
    rows: int
    groups: int  # independent samples: the groups of rows, or the rows

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95% confidence interval by Student's t, or None without a standard error."""
        if self.error is None:
            return None
        reach = float(stats.t.ppf((1 + LEVEL) / 2, self.groups - 1)) * self.error
        return self.value - reach, self.value + reach


def estimate(
    values: Sequence[float],
    weights: Sequence[float] | None = None,
    groups: Sequence[str | None] | None = None,
) -> Estimate:
    """Estimate the ratio of the sums of `values` and `weights`, with its standard error.

    Without `weights` the ratio is the mean of `values`. A row whose group is None is a group with
    one row. The error of the ratio is by linear approximation (the delta method).
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


def _sum_by_group(off_R: Float64s, groups: Sequence[str | None] | None) -> Float64s:
    if groups is None:
        return off_R
    names = [f"row {n}" if g is None else f"group {g}" for n, g in enumerate(groups)]
    _, places = np.unique(names, return_inverse=True)
    return np.bincount(places, weights=off_R).astype(np.float64)


def bound_unseen_share(draws: int) -> float:
    """Return the upper bound of a share of which `draws` samples had none (Clopper and Pearson).

    It serves for rows that are all right or all wrong, which have no variance.
    """
    return float(1 - ((1 - LEVEL) / 2) ** (1 / draws))


@dataclass(frozen=True)
class PairedDifference:
    """The difference in score of B and A on the same rows."""

    difference: Estimate
    a_only: int  # rows on which A scores higher
    b_only: int  # rows on which B scores higher

    @property
    def within_noise(self) -> bool:
        """True if the interval of the difference contains 0, or there is no interval."""
        bounds = self.difference.interval
        return bounds is None or bounds[0] <= 0 <= bounds[1]


def estimate_paired_difference(
    a: Sequence[float], b: Sequence[float], groups: Sequence[str | None] | None = None
) -> PairedDifference:
    """Estimate the mean difference B − A; `a` and `b` are scores of the same rows in one order."""
    off = [y - x for x, y in zip(a, b, strict=True)]
    better = sum(gap > 0 for gap in off)
    return PairedDifference(estimate(off, groups=groups), sum(gap < 0 for gap in off), better)


def estimate_shuffled_band(
    chosen: Sequence[int], gold: Sequence[int], choices: Sequence[int]
) -> tuple[float, float]:
    """Return the bounds of 99% of the scores that these answers get with shuffled labels.

    Labels are shuffled 2,000 times among rows with the same number of choices. This is the range of
    scores of a model that gives such answers without regard to the questions.
    """
    chosen_R, gold_R, choices_R = (np.asarray(values) for values in (chosen, gold, choices))
    dice = np.random.default_rng(0)
    right = np.zeros(2000, dtype=np.int64)
    for count in np.unique(choices_R):
        rows = np.flatnonzero(choices_R == count)
        mine = chosen_R[rows]
        labels = gold_R[rows]
        for trial in range(len(right)):
            right[trial] += int((mine == dice.permutation(labels)).sum())
    low, high = np.quantile(right / len(chosen_R), [0.005, 0.995], method="nearest")
    return float(low), float(high)


BINS = 10


@dataclass(frozen=True)
class ConfidenceBin:
    """Rows in one tenth of the confidence range."""

    rows: int
    confidence: float  # mean confidence
    right: float  # mean score: the share of right answers


@dataclass(frozen=True)
class Calibration:
    """Accuracy by confidence."""

    bins: tuple[ConfidenceBin, ...]  # non-empty bins, by rising confidence

    @property
    def error(self) -> float:
        """The expected calibration error, between 0 and 1 (arXiv:1706.04599).

        This is the mean over rows of the distance between confidence and accuracy of their bin.
        """
        rows = sum(entry.rows for entry in self.bins)
        return sum(entry.rows * abs(entry.confidence - entry.right) for entry in self.bins) / rows


def calibrate(rows: Sequence[Mapping[str, Any]], metric: str) -> Calibration | None:
    """Bin `rows` by tenths of confidence. Return None if the rows have no confidence."""
    if not rows or any("confidence" not in row for row in rows):
        return None
    binned: dict[int, list[tuple[float, float]]] = {}
    for row in rows:
        sure = float(row["confidence"])
        place = min(BINS - 1, int(sure * BINS))
        binned.setdefault(place, []).append((sure, float(row["scores"][metric])))
    found = []
    for _, pairs in sorted(binned.items()):
        count = len(pairs)
        sure, right = (sum(values) / count for values in zip(*pairs, strict=True))
        found.append(ConfidenceBin(count, sure, right))
    return Calibration(tuple(found))
