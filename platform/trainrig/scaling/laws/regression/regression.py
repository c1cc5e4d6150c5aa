"""Regression of log loss that fits a form to runs.

Shapes: R rows (runs), P coordinates of theta, S starts, K draws.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from trainrig.errors import DataError
from trainrig.scaling.laws.forms import Array, Constants
from trainrig.scaling.laws.law import FitRecord, LeftOut
from trainrig.scaling.laws.regression.minimise import (
    CurveFunction,
    Loss,
    Mask,
    Minima,
    MinimiseSettings,
    minimise,
)
from trainrig.scaling.laws.runs_table import RunsTable

F = TypeVar("F", bound=Constants)

# A start agrees with the best one if its objective is within this share of it. That is 100,000
# times the tolerance of the search, and far below a change in a constant's fourth digit.
AGREEMENT = 1e-8
# Minima whose objective is within this share of the best may be the best in bootstrap draws.
NEAR = 0.2
RIVALS = 4  # most such minima that are kept
NO_NOISE = 1e-18  # an objective below this is rounding: the runs come from a law without noise
FINEST = 1e-9  # residuals of log loss are taken to be at least this: no table has more digits


@dataclass(frozen=True)
class Regression(Generic[F]):
    """The curve, runs, loss and starts of a regression."""

    runs: RunsTable
    curve: CurveFunction  # log loss as a function of theta
    starts: Array  # [S, P]
    loss: Loss
    forms: Callable[[Array], F]  # thetas [..., P] to one form, whose constants may be arrays
    search: MinimiseSettings
    # Values from which a constant counts as infinite, by its name.
    largest: Mapping[str, float] = field(default_factory=dict)

    @cached_property
    def log_loss(self) -> Array:
        """The log of the measured losses, [R]."""
        return np.log(self.runs.loss)

    def fit(self) -> "Fit[F]":
        """Return the best minimum over all starts. Raises DataError if no start ends at a minimum.

        Each start is searched twice. The direct search is slow, because far from the minimum almost
        every row is on the linear part of Huber's loss. The search through the minimum for a wider
        delta is faster, but leads all starts the same way and misses other minima.
        """
        first, *finer = self.loss.deltas
        ends = self._find_ends(self.starts, (first,))
        searches = len(self.starts)
        if first < self.search.first_delta:
            ends = ends.combine(self._find_ends(self.starts, (self.search.first_delta, first)))
            searches *= 2
        if not len(ends.objective):
            raise DataError(
                f"none of {len(self.starts)} starts ended at a minimum with positive constants:"
                f" the losses of the {len(self.runs)} runs do not have the shape of the form; add"
                " runs that differ more in parameters and in tokens, or leave out outliers"
            )
        leaders, followers = _select_distinct(ends)
        if finer:  # starts that share a minimum here share it at finer deltas, too
            leaders = self.find_minima(leaders.theta, self._make_ones(leaders.theta), tuple(finer))
        order = np.argsort(leaders.objective, kind="stable")
        best = leaders.take(order[:1])
        return Fit(self, best, float(followers[order[0]] / searches), leaders.theta[order[1:]])

    def _find_ends(self, starts: Array, deltas: tuple[float, ...]) -> Minima:
        """Return the minima with positive constants that searches from starts [S, P] find."""
        found = self.find_minima(starts, self._make_ones(starts), deltas)
        return found.take(np.flatnonzero(found.converged & self.valid(found.theta)))

    def _make_ones(self, starts: Array) -> Array:
        return np.ones((len(starts), len(self.runs)))

    def find_best_minima(self, starts: Array, weights: Array) -> Minima:
        """Return the best minimum over starts [V, P], for K problems with weights [K, R]."""
        found = [self.find_minima(start, weights) for start in starts]
        heights = np.stack([np.where(m.converged, m.objective, np.inf) for m in found])
        best = np.argmin(heights, axis=0)
        columns = zip(*(vars(m).values() for m in found), strict=True)
        return Minima(*(np.stack(column)[best, np.arange(len(best))] for column in columns))

    def find_minima(
        self, start: Array, weights: Array, deltas: tuple[float, ...] | None = None
    ) -> Minima:
        """Return the minima of K problems with weights [K, R], from start [K, P] or [P]."""
        start = np.broadcast_to(start, (len(weights), start.shape[-1]))
        deltas = deltas or self.loss.deltas
        return minimise(self.curve, start, self.log_loss, weights, deltas, self.search)

    def valid(self, theta: Array) -> Mask:
        """Return a mask [K]: whether all constants of theta [K, P] are positive and finite."""
        with np.errstate(over="ignore"):
            columns = np.broadcast_arrays(*self.forms(theta).constants.values())
        constants = np.stack(columns)
        valid: Mask = (np.isfinite(constants) & (constants > 0)).all(axis=0)
        return valid


def _select_distinct(ends: Minima) -> tuple[Minima, Array]:
    """Return the best and its rival minima, and how many of `ends` agree with each."""
    ends = ends.take(np.argsort(ends.objective, kind="stable"))
    least = max(ends.objective[0], NO_NOISE)
    relative = (ends.objective - ends.objective[0]) / least
    heads = np.flatnonzero(np.diff(relative, prepend=-np.inf) > AGREEMENT)
    followers = np.diff(np.append(heads, len(relative)))
    near = np.flatnonzero(relative[heads] < NEAR)[: 1 + RIVALS]
    return ends.take(heads[near]), followers[near]


@dataclass(frozen=True)
class Fit(Generic[F]):
    """Fitted constants, with the evidence that they are a minimum."""

    regression: Regression[F]
    minimum: Minima  # minimum of one problem
    agree: float  # share of the searches that ended at this minimum
    rivals: Array  # [V, P] other minima that are nearly as good

    @property
    def theta(self) -> Array:
        """The coordinates of the minimum, [P]."""
        return np.asarray(self.minimum.theta[0])

    @cached_property
    def form(self) -> F:
        """The fitted law."""
        form = self.regression.forms(self.theta)
        return form.with_constants(form.constants)  # validated, with constants as floats

    @property
    def fitted(self) -> tuple[str, ...]:
        """The names of the fitted constants; a base form that was given is not among them."""
        of_one = self.regression.forms(self.theta[None]).constants
        return tuple(name for name, column in of_one.items() if np.ndim(column))

    @property
    def objective(self) -> float:
        """The sum over rows of the loss of the residuals; for `Lad`, of their absolute values."""
        if self.regression.loss.kind == "Lad":
            return float(np.abs(self.residuals).sum())
        return float(self.minimum.objective[0])

    @cached_property
    def residuals(self) -> Array:
        """The log of the measured losses minus the log of the predicted ones, [R]."""
        predicted = self.regression.curve(self.theta[None]).value[0]
        return np.asarray(self.regression.log_loss - predicted)

    def refit_draws(self, counts: NDArray[np.int64]) -> Array:
        """Refit theta [K, P] to rows with counts [K, R], starting from this minimum and its rivals.

        A draw without a minimum with positive constants is NaN.
        """
        starts = np.concatenate([self.theta[None], self.rivals])
        found = self.regression.find_best_minima(starts, np.asarray(counts, dtype=np.float64))
        good = found.converged & self.regression.valid(found.theta)
        return np.where(good[:, None], found.theta, np.nan)

    def build_record(self, left_out: tuple[LeftOut, ...] = ()) -> FitRecord:
        """Build the record of this fit for the law's file."""
        loss = self.regression.loss
        return FitRecord(
            loss=loss.kind,
            delta=None if loss.kind == "Squares" else loss.deltas[-1],
            objective=self.objective,
            gradient_norm=float(np.linalg.norm(self.minimum.gradient[0])),
            starts=len(self.regression.starts),
            starts_that_agree=self.agree,
            rows_used=len(self.regression.runs),
            rows_left_out=left_out,
        )
