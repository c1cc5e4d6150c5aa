"""A form and the runs it is fitted to, as a regression of log loss.

Shapes: R rows (runs), P coordinates of theta, S starts, K draws.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from trainrig.errors import DataError
from trainrig.scaling.forms import Array, Constants
from trainrig.scaling.law import FitRecord, LeftOut
from trainrig.scaling.minimise import Curve, Loss, Mask, Minima, Search, minimise
from trainrig.scaling.runs import Runs

F = TypeVar("F", bound=Constants)

# Starts agree with the best when their objective is within this share of it: a hundred thousand
# times what the search promises, and far below what would move a constant's fourth digit.
AGREEMENT = 1e-8


@dataclass(frozen=True)
class Regression(Generic[F]):
    """What is fitted, to what, by which loss."""

    runs: Runs
    curve: Curve  # log loss by theta
    starts: Array  # [S, P]
    loss: Loss
    forms: Callable[[Array], F]  # thetas [..., P] to one form, whose constants may be arrays
    search: Search

    @cached_property
    def log_loss(self) -> Array:
        """[R]."""
        return np.log(self.runs.loss)

    def fit(self) -> "Fit[F]":
        """The best minimum from all starts. Raises DataError where none is one."""
        weights = np.ones((len(self.starts), len(self.runs)))
        ends = self.minima(self.starts, weights, from_afar=True)
        ends = ends.take(np.flatnonzero(ends.converged & self.valid(ends.theta)))
        if not len(ends.objective):
            raise DataError(
                f"none of {len(self.starts)} starts ended at a minimum with positive constants:"
                f" the {len(self.runs)} runs do not bend as the form does; add runs that differ"
                " more in parameters and in tokens, or leave out those that stand apart"
            )
        best = int(np.argmin(ends.objective))
        agree = int((ends.objective <= ends.objective[best] * (1 + AGREEMENT)).sum())
        return Fit(self, ends.take(np.array([best])), agree / len(self.starts))

    def minima(self, start: Array, weights: Array, from_afar: bool = False) -> Minima:
        """Where each of K searches ends: from start [K, P] or [P], rows weighed by [K, R].

        From afar almost every row is on the straight part of Huber's loss, and the way is long;
        a wider delta shows it.
        """
        start = np.broadcast_to(start, (len(weights), start.shape[-1]))
        deltas = self.loss.deltas
        if from_afar and deltas[0] < self.search.first_delta:
            deltas = (self.search.first_delta, *deltas)
        return minimise(self.curve, start, self.log_loss, weights, deltas, self.search)

    def valid(self, theta: Array) -> Mask:
        """[K]: are all constants of theta [K, P] positive and finite?"""
        with np.errstate(over="ignore"):
            constants = np.stack(list(self.forms(theta).constants.values()))
        valid: Mask = (np.isfinite(constants) & (constants > 0)).all(axis=0)
        return valid


@dataclass(frozen=True)
class Fit(Generic[F]):
    """The constants found, and the proof that they are a minimum."""

    regression: Regression[F]
    minimum: Minima  # of one
    agree: float  # share of the starts that ended here

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

    def draws(self, counts: NDArray[np.int64]) -> Array:
        """Theta [K, P] refitted to rows taken counts [K, R] times, from here; NaN where none is.

        What `bootstrap.bootstrap` wants of a fit.
        """
        found = self.regression.minima(self.theta, np.asarray(counts, dtype=np.float64))
        good = found.converged & self.regression.valid(found.theta)
        return np.where(good[:, None], found.theta, np.nan)

    def record(self, left_out: tuple[LeftOut, ...] = ()) -> FitRecord:
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
