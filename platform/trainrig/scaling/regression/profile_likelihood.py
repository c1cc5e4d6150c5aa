"""Profile-likelihood intervals: how far a quantity can move before the fit becomes implausible.

The quantity is tied to a value, all constants are fitted again, and the rise of the objective is
recorded. An end of the interval is where the rise exceeds what noise explains; if it never does,
that end is open. No runs are resampled, so few runs suffice, and intervals may be asymmetric.

For a robust loss the rise is compared with chi-squared after scaling by tau = E psi^2 / E psi'
(Ronchetti's likelihood-ratio type test; Hampel et al. 1986, Robust Statistics, section 7.2). With
Huber's delta far below the noise, E psi' is the density of the residuals near 0. It is estimated
over a window wider than delta, because hardly any rows lie inside delta except those that the fit
itself put there.

Shapes: R rows, P coordinates of theta, M points of a profile.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from scipy.stats import f as f_distribution

from trainrig.scaling.laws.law import Interval, IntervalEstimate
from trainrig.scaling.laws.law_forms import Array, Constants
from trainrig.scaling.regression.minimise import (
    CurveFunction,
    CurveValue,
    Differenced,
    Minima,
    minimise,
)
from trainrig.scaling.regression.regression import FINEST, Fit, ReportProgress, ignore_progress

F = TypeVar("F", bound=Constants)
# Function of a form, whose constants may be arrays; the value is positive.
Quantity = Callable[[F], Array | float]

# Distances from the best value, in standard errors, at which the profile is computed on each side
# until it ends.
STEPS = (0.7, 1.4, 2.1, 2.8, 4.0, 6.0, 9.0, 14.0, 20.0, 40.0, 80.0, 160.0)
# A quantity that can change by this factor without a significant rise has no bound.
FARTHEST = np.log(1e4)
TIE = 100.0  # stiffness of the tie, in multiples of the quantity's own curvature


@dataclass(frozen=True)
class Profile:
    """Least objective at each value of a quantity."""

    values: Array  # [M], ascending
    # [M] rise of the objective, in units in which noise makes it chi-squared with one degree of
    # freedom.
    rises: Array
    best: float
    cutoff: float  # rise at the ends of the interval
    interval: Interval


def profile(fit: Fit[F], quantity: Quantity[F], level: float = 0.95) -> Profile:
    """Compute the profile of `quantity` around its best value, until the rise is significant."""
    view = _View(fit, quantity)
    cutoff = float(f_distribution.ppf(level, 1, view.spare))
    below = view.walk(-1, cutoff)
    above = view.walk(1, cutoff)
    logs = np.r_[below[0][:0:-1], above[0]]
    rises = np.r_[below[1][:0:-1], above[1]]
    # The tied search may find a lower minimum than the fit did, so rises are relative to the
    # lowest.
    rises -= rises.min()
    low = _find_crossing(logs[::-1], rises[::-1], cutoff)
    high = _find_crossing(logs, rises, cutoff)
    return Profile(
        np.exp(logs), rises, float(np.exp(view.best)), cutoff,
        Interval(low=low, high=high, level=level),
    )  # fmt: skip


def compute_profiles(
    fit: Fit[F],
    quantities: Mapping[str, Quantity[F]] | None = None,
    level: float = 0.95,
    report: ReportProgress = ignore_progress,
) -> dict[str, Profile]:
    """Compute the profile of each fitted constant, then of each of `quantities`."""
    asked = {name: _make_constant_quantity(name) for name in fit.form.constants} | dict(
        quantities or {}
    )
    found = {}
    for name, quantity in asked.items():
        found[name] = profile(fit, quantity, level)
        report(len(found), len(asked))
    return found


def with_profiles(
    estimates: Mapping[str, IntervalEstimate], found: Mapping[str, Profile]
) -> dict[str, IntervalEstimate]:
    """Return `estimates` with the profile intervals added."""
    return {
        name: estimate.model_copy(update={"profile": found[name].interval})
        if name in found
        else estimate
        for name, estimate in estimates.items()
    }


def _make_constant_quantity(name: str) -> Quantity[Constants]:
    return lambda form: form.constants[name]


class _View:
    """A fit from the point of view of one quantity, which can be tied to a value."""

    def __init__(self, fit: Fit[F], quantity: Quantity[F]) -> None:
        self.fit = fit
        regression = fit.regression
        self.log_quantity = Differenced(
            lambda theta: np.log(np.asarray(quantity(regression.forms(theta))))[:, None]
        )
        self.tied = _Tied(regression.curve, self.log_quantity)
        at = self.log_quantity(fit.theta[None])
        self.best = float(at.value[0, 0])
        slope = regression.curve(fit.theta[None]).slope[0]  # [R, P]
        self.spare = slope.shape[0] - slope.shape[1]
        self.tau, self.step, window = _estimate_noise(fit, slope, at.slope[0, 0], self.spare)
        # A finer delta would make the search long and hardly change the profile, which spans the
        # noise.
        last = regression.loss.deltas[-1]
        self.delta = max(last, window / 50)
        widened = 1 if np.isinf(last) else self.delta / last
        self.stiffness = TIE * widened * self.tau / self.step**2

    def walk(self, sign: int, cutoff: float) -> tuple[Array, Array]:
        """Follow the profile from the best value in direction `sign`, until past the cutoff.

        Returns the logs of the quantity and the rises. It also stops where the quantity moves no
        farther, or has changed by the factor of FARTHEST.
        """
        logs = [self.best]
        rises = [0.0]
        theta = self.fit.theta
        for step in STEPS:
            found = self._minimise_tied(self.best + sign * step * self.step, theta)
            here = float(self.log_quantity(found.theta).value[0, 0])
            if abs(here - logs[-1]) < 1e-3 * self.step:
                break  # the quantity moves no farther, however strong the tie
            theta = found.theta[0]
            logs.append(here)
            rises.append(self._compute_rise(found))
            if rises[-1] > cutoff or abs(here - self.best) > FARTHEST:
                break
        return np.array(logs), np.array(rises)

    def _minimise_tied(self, goal: float, start: Array) -> Minima:
        """Return the minimum with the quantity tied to `goal` as by a spring.

        The quantity may settle elsewhere than at `goal`. The result is optimal for the value where
        it settles, which is as valid a point of the profile.
        """
        regression = self.fit.regression
        rows = len(regression.runs)
        weights = np.r_[np.ones(rows), self.stiffness][None]
        targets = np.r_[regression.log_loss, goal]
        delta = np.r_[np.full(rows, self.delta), np.inf]
        starts = np.concatenate([start[None], self.fit.rivals])
        weights = np.tile(weights, (len(starts), 1))
        found = minimise(self.tied, starts, targets, weights, (delta,), regression.search)
        return found.take(np.array([np.argmin(found.objective)]))

    def _compute_rise(self, found: Minima) -> float:
        regression = self.fit.regression
        residual = np.abs(regression.curve(found.theta).value[0] - regression.log_loss)
        capped = np.minimum(residual, regression.loss.deltas[-1])
        objective = float((capped * (residual - capped / 2)).sum())
        return 2 * (objective - float(self.fit.minimum.objective[0])) / self.tau


class _Tied:
    """Curve with one row more: the logarithm of the quantity."""

    def __init__(self, curve: CurveFunction, log_quantity: CurveFunction) -> None:
        self.curve = curve
        self.log_quantity = log_quantity

    def __call__(self, theta: Array) -> CurveValue:
        rows = self.curve(theta)
        tie = self.log_quantity(theta)
        return CurveValue(
            np.concatenate([rows.value, tie.value], axis=1),
            np.concatenate([rows.slope, tie.slope], axis=1),
            # The bend of the quantity's log is small; without it the search takes as many steps.
            lambda c: rows.bend(c[:, :-1]),
        )


def _estimate_noise(
    fit: Fit[F], slope: Array, direction: Array, spare: int
) -> tuple[float, float, float]:
    """Return tau, the standard error of a quantity with gradient `direction` [P], and the window.

    Two estimates are made and the larger is taken. One assumes equal and independent rows, which is
    more stable with few rows. The other takes training runs as they are (the sandwich estimator of
    Huber's theory), which also holds where some runs scatter more than others, or where all points
    of a run deviate together.
    """
    size = np.maximum(np.abs(fit.residuals), FINEST)
    delta = fit.regression.loss.deltas[-1]
    pull = np.copysign(np.minimum(size, delta), fit.residuals)
    near, window = _smooth_derivative(size, delta, spare)
    density = max(near.sum() - (len(size) - spare) * near.max(), near.max()) / spare
    # By the delta method, the objective rises by half the squared change divided by these.
    alike = direction @ np.linalg.pinv(slope.T @ slope * density) @ direction
    influence = slope @ np.linalg.pinv(slope.T @ (slope * near[:, None])) @ direction
    own = float(influence @ (influence * near))
    _, cluster = np.unique(fit.regression.runs.trial, return_inverse=True)
    together = np.bincount(cluster, influence * pull)
    clusters = len(together)
    correction = clusters / (clusters - 1) * len(size) / spare
    variances = (
        float(pull @ pull) / spare / density * alike,
        float(together @ together) * correction,
    )
    tau = max(variances[0] / alike, variances[1] / own)
    return float(tau), float(np.sqrt(max(variances))), window


def _smooth_derivative(size: Array, delta: float, spare: int) -> tuple[Array, float]:
    """Return psi' of each row [R], smoothed over a window of residuals, and that window."""
    rows = len(size)
    if np.isinf(delta):
        return np.ones(rows), 0.0
    # The noise is estimated from the median residual, which for normal noise is .6745 of its
    # standard deviation.
    noise = float(np.median(size)) / 0.6745 * np.sqrt(rows / spare)
    window = max(delta, 1.15 * noise * rows**-0.2)
    return (size <= window) * delta / window, window


def _find_crossing(logs: Array, rises: Array, cutoff: float) -> float | None:
    """Return the quantity where the rise last crosses `cutoff`, or None if it ends below.

    Between two points the root of the rise is interpolated, which is linear where the objective is
    a parabola.
    """
    if rises[-1] <= cutoff:
        return None
    before = int(np.flatnonzero(rises <= cutoff)[-1])
    roots = np.sqrt(rises[before : before + 2])
    share = (np.sqrt(cutoff) - roots[0]) / (roots[1] - roots[0])
    return float(np.exp(logs[before] + share * (logs[before + 1] - logs[before])))
