"""A form and the runs it is fitted to, as a regression of log loss.

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

# Starts agree with the best when their objective is within this share of it: a hundred thousand
# times what the search promises, and far below what would move a constant's fourth digit.
AGREEMENT = 1e-8
# Other minima whose objective is within this share of the best may be the best of other draws.
NEAR = 0.2
RIVALS = 4  # at most
NO_NOISE = 1e-18  # an objective below it is rounding: of runs made from a law without noise
FINEST = 1e-9  # nor is a residual, in log loss, taken for smaller: no table has more digits


@dataclass(frozen=True)
class Regression(Generic[F]):
    """What is fitted, to what, by which loss."""

    runs: RunsTable
    curve: CurveFunction  # log loss by theta
    starts: Array  # [S, P]
    loss: Loss
    forms: Callable[[Array], F]  # thetas [..., P] to one form, whose constants may be arrays
    search: MinimiseSettings
    largest: Mapping[str, float] = field(default_factory=dict)  # constants from here on: infinite

    @cached_property
    def log_loss(self) -> Array:
        """[R]."""
        return np.log(self.runs.loss)

    def fit(self) -> "Fit[F]":
        """The best minimum from all starts. Raises DataError where none is one.

        Each start is searched from twice. Straight on: from afar almost every row is on the
        straight part of Huber's loss, and the way is long. By the minimum under a wider delta,
        which shows the way, but shows it to all alike: minima beside it are then not seen.
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
                f" the {len(self.runs)} runs do not bend as the form does; add runs that differ"
                " more in parameters and in tokens, or leave out those that stand apart"
            )
        leaders, followers = _select_distinct(ends)
        if finer:  # from one minimum the way to finer deltas is one, however many starts found it
            leaders = self.find_minima(leaders.theta, self._make_ones(leaders.theta), tuple(finer))
        order = np.argsort(leaders.objective, kind="stable")
        best = leaders.take(order[:1])
        return Fit(self, best, float(followers[order[0]] / searches), leaders.theta[order[1:]])

    def _find_ends(self, starts: Array, deltas: tuple[float, ...]) -> Minima:
        """The minima with positive constants that searches from starts [S, P] end at."""
        found = self.find_minima(starts, self._make_ones(starts), deltas)
        return found.take(np.flatnonzero(found.converged & self.valid(found.theta)))

    def _make_ones(self, starts: Array) -> Array:
        return np.ones((len(starts), len(self.runs)))

    def find_best_minima(self, starts: Array, weights: Array) -> Minima:
        """The best minimum from any of starts [V, P], for each of K problems: weights [K, R]."""
        found = [self.find_minima(start, weights) for start in starts]
        heights = np.stack([np.where(m.converged, m.objective, np.inf) for m in found])
        best = np.argmin(heights, axis=0)
        columns = zip(*(vars(m).values() for m in found), strict=True)
        return Minima(*(np.stack(column)[best, np.arange(len(best))] for column in columns))

    def find_minima(
        self, start: Array, weights: Array, deltas: tuple[float, ...] | None = None
    ) -> Minima:
        """Where each of K searches ends: from start [K, P] or [P], rows weighed by [K, R]."""
        start = np.broadcast_to(start, (len(weights), start.shape[-1]))
        deltas = deltas or self.loss.deltas
        return minimise(self.curve, start, self.log_loss, weights, deltas, self.search)

    def valid(self, theta: Array) -> Mask:
        """[K]: are all constants of theta [K, P] positive and finite?"""
        with np.errstate(over="ignore"):
            columns = np.broadcast_arrays(*self.forms(theta).constants.values())
        constants = np.stack(columns)
        valid: Mask = (np.isfinite(constants) & (constants > 0)).all(axis=0)
        return valid


def _select_distinct(ends: Minima) -> tuple[Minima, Array]:
    """The best of `ends` and its rivals, and how many of `ends` are each."""
    ends = ends.take(np.argsort(ends.objective, kind="stable"))
    least = max(ends.objective[0], NO_NOISE)
    relative = (ends.objective - ends.objective[0]) / least
    heads = np.flatnonzero(np.diff(relative, prepend=-np.inf) > AGREEMENT)
    followers = np.diff(np.append(heads, len(relative)))
    near = np.flatnonzero(relative[heads] < NEAR)[: 1 + RIVALS]
    return ends.take(heads[near]), followers[near]


@dataclass(frozen=True)
class Fit(Generic[F]):
    """The constants found, and the proof that they are a minimum."""

    regression: Regression[F]
    minimum: Minima  # of one
    agree: float  # share of the searches that ended here
    rivals: Array  # [V, P], other minima nearly as good

    @property
    def theta(self) -> Array:
        """[P]."""
        return np.asarray(self.minimum.theta[0])

    @cached_property
    def form(self) -> F:
        """The law."""
        form = self.regression.forms(self.theta)
        return form.with_constants(form.constants)  # checked, and with floats

    @property
    def fitted(self) -> tuple[str, ...]:
        """The constants that the runs decided; a base form's may have been given."""
        of_one = self.regression.forms(self.theta[None]).constants
        return tuple(name for name, column in of_one.items() if np.ndim(column))

    @property
    def objective(self) -> float:
        """The sum over rows of the loss of the residuals; for least absolute deviations of |r|."""
        if self.regression.loss.kind == "Lad":
            return float(np.abs(self.residuals).sum())
        return float(self.minimum.objective[0])

    @cached_property
    def residuals(self) -> Array:
        """[R]: log of the measured loss less log of the law's."""
        predicted = self.regression.curve(self.theta[None]).value[0]
        return np.asarray(self.regression.log_loss - predicted)

    def refit_draws(self, counts: NDArray[np.int64]) -> Array:
        """Theta [K, P] refitted to rows taken counts [K, R] times, from here and from the rivals.

        NaN where there is no minimum with positive constants.
        """
        starts = np.concatenate([self.theta[None], self.rivals])
        found = self.regression.find_best_minima(starts, np.asarray(counts, dtype=np.float64))
        good = found.converged & self.regression.valid(found.theta)
        return np.where(good[:, None], found.theta, np.nan)

    def build_record(self, left_out: tuple[LeftOut, ...] = ()) -> FitRecord:
        """What a law's file says of this fit."""
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
