"""Regression of log loss that fits a form to runs, after checks that the runs can identify it.

A fit always returns numbers. But runs on one line of the (log N, log D) plane (the same D/N, the
same budget or the same N) cannot separate the two terms of a law, so they are refused before a fit.
Slow fits report their progress in lines of text.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from trainrig.errors import DataError
from trainrig.scaling.laws.law import FitRecord, LeftOut
from trainrig.scaling.laws.law_forms import LEVELS, Array, Constants
from trainrig.scaling.laws.runs_table import RunsTable
from trainrig.scaling.regression.minimise import (
    CurveFunction,
    Loss,
    Mask,
    Minima,
    MinimiseSettings,
    Pinned,
    minimise,
)

EVERY = 5.0  # seconds between two lines, and before the first

ReportProgress = Callable[[int, int], None]
"""Called with how many are done, and of how many."""


def ignore_progress(done: int, total: int) -> None:
    """Ignore the progress: the default for functions that report it."""


class Progress:
    """Progress reporter that passes lines to `show`, at most one in EVERY seconds."""

    def __init__(
        self, show: Callable[[str], object], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Start the clock, a function that returns seconds."""
        self._show = show
        self._clock = clock
        self._begun = self._last = clock()
        self._stage = ""

    @classmethod
    def silent(cls) -> "Progress":
        """Return a reporter that prints nothing."""
        return cls(lambda line: None)

    def stage(self, name: str) -> None:
        """Report that the stage `name` begins."""
        self._stage = name
        self._say("")

    def count(self, done: int, total: int) -> None:
        """Report how many steps of the current stage are done."""
        self._say(f", {done:,} of {total:,}")

    def _say(self, more: str) -> None:
        now = self._clock()
        if now - self._last < EVERY:
            return
        self._last = now
        self._show(f"fit: {self._stage}{more}, {now - self._begun:.0f} s")


SPARE = 1  # runs needed beyond the number of constants, to see how well the form fits
SAME = 1.05  # values within this factor count as equal
LEAST_FACTOR = 1.3  # factor by which the runs must deviate from their common line


def check_numbers(runs: RunsTable) -> None:
    """Raise DataError naming the first run whose size, tokens or loss is not positive."""
    for column in ("parameters", "tokens", "loss"):
        values = getattr(runs, column)
        bad = np.flatnonzero(~(np.isfinite(values) & (values > 0)))
        if len(bad):
            more = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
            raise DataError(
                f"{runs.name[bad[0]]}: {column} is {values[bad[0]]:g}{more}; a law needs positive"
                " numbers: remove such runs from the table"
            )


def check_spread(runs: RunsTable, form: str, constants: int) -> None:
    """Raise DataError if `runs` cannot identify the form's `constants`, and suggest runs to add."""
    check_numbers(runs)
    sizes = find_levels(runs.parameters)
    lengths = find_levels(runs.tokens)
    needed = constants + SPARE
    if len(runs) < needed or len(sizes) < LEVELS or len(lengths) < LEVELS:
        missing = max(needed - len(runs), LEVELS - len(sizes), LEVELS - len(lengths))
        raise DataError(
            f"{len(runs)} runs with {_format_number_of(sizes, 'size')} and"
            f" {_format_number_of(lengths, 'token count')}: {form} has {constants} constants and"
            f" needs {needed} runs, {LEVELS} sizes and {LEVELS} token counts; add at least"
            f" {missing}, {_suggest_where(runs, sizes, lengths)}"
        )
    slope, factor = _fit_line(np.log(runs.parameters), np.log(runs.tokens))
    if factor < LEAST_FACTOR:
        raise DataError(
            f"all {len(runs)} runs lie {_describe_ray(runs, slope)} (within a factor {factor:.3g}),"
            f" where {form} cannot separate the effects of parameters and tokens; add others,"
            " such as the same sizes with a quarter and four times the tokens"
        )


def find_levels(values: Array) -> Array:
    """Return the different values in ascending order, merging those within a factor SAME."""
    ordered = np.sort(values)
    new = np.r_[True, ordered[1:] > ordered[:-1] * SAME] if len(ordered) else np.array([], bool)
    return np.asarray(ordered[new])


def _fit_line(log_n: Array, log_d: Array) -> tuple[float, float]:
    """Return the slope of the line through the runs, and their greatest deviation as a factor."""
    centred = np.stack([log_n - log_n.mean(), log_d - log_d.mean()])
    _, vectors = np.linalg.eigh(centred @ centred.T)
    across = vectors[:, 0]
    along = vectors[:, 1]
    with np.errstate(divide="ignore"):
        return float(along[1] / along[0]), float(np.exp(np.ptp(across @ centred)))


def _describe_ray(runs: RunsTable, slope: float) -> str:
    if abs(slope - 1) < 0.1:
        return f"at one ratio D/N = {np.median(runs.tokens / runs.parameters):.3g}"
    if abs(slope + 1) < 0.1:
        return f"at one budget of {np.median(6 * runs.parameters * runs.tokens):.3g} FLOPs"
    return f"on one line D ~ N^{slope:.2f}"


def _suggest_where(runs: RunsTable, sizes: Array, lengths: Array) -> str:
    if not len(runs):
        return "over a tenfold range of both"
    places = []
    if len(sizes) < LEVELS:
        low = runs.parameters.min() / 4
        high = runs.parameters.max() * 4
        places.append(f"of N from {low:.2g} to {high:.2g}")
    if len(lengths) < LEVELS:
        low = runs.tokens.min() / 4
        high = runs.tokens.max() * 4
        places.append(f"with D from {low:.2g} to {high:.2g}")
    return " and ".join(places) if places else "at other pairs of N and D"


def _format_number_of(values: Array, noun: str) -> str:
    return f"{len(values)} {noun}{'' if len(values) == 1 else 's'}"


F = TypeVar("F", bound=Constants)

# A start agrees with the best one if its objective is within this share of it. That is 100,000
# times the tolerance of the search, and far below a change in a constant's fourth digit.
AGREEMENT = 1e-8
# Minima whose objective is within this share of the best may be the best in bootstrap draws.
NEAR = 0.2
RIVALS = 4  # most such minima that are kept
NO_NOISE = 1e-18  # an objective below this is rounding: the runs come from a law without noise
FINEST = 1e-9  # residuals of log loss are taken to be at least this: no table has more digits


# Other starts are searched if they are above the minimum by at most this share of the descent.
WORST_DESCENT = 0.25
VANISHED = -1000.0  # logarithm of a constant that is 0 in every floating-point number


@dataclass(frozen=True)
class Vanishing:
    """Constant added to the loss that runs may show to be as small as 0: the irreducible loss."""

    constant: str  # name of the constant
    coordinate: int  # index in theta of its logarithm


@dataclass(frozen=True)
class Regression(Generic[F]):
    """The curve, runs, loss and starts of a regression."""

    runs: RunsTable
    curve: CurveFunction  # log loss as a function of theta
    starts: Array  # [S, P]
    loss: Loss
    forms: Callable[[Array], F]  # thetas [..., P] to one form, whose constants may be arrays
    # Raises DataError if runs cannot identify the constants.
    check: Callable[[RunsTable], None]
    search: MinimiseSettings = field(default_factory=MinimiseSettings)
    # Values from which a constant counts as infinite, by its name.
    largest: Mapping[str, float] = field(default_factory=dict)
    # Constant that may be 0 in a bootstrap draw. A fit whose own minimum lies there is refused,
    # because the runs do not show the constant at all.
    vanishing: Vanishing | None = None

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
        """Return the best minimum over starts [V, P], for K problems with weights [K, R].

        All problems are searched from the first start. From another start, only those are searched
        whose objective is already there hardly above the minimum that was found: the starts are
        minima of other weights, and a search lowers the objective little from any of them. That is
        a heuristic: of 200 draws of a published table, 8 ended in a worse minimum than searches
        from all starts find, by up to 2.9% of the objective.
        """
        best = self.find_minima(starts[0], weights)
        descent = self._evaluate_at(starts[0], weights) - best.objective
        reach = np.where(best.converged, best.objective + WORST_DESCENT * descent, np.inf)
        for start in starts[1:]:
            chosen = np.flatnonzero(self._evaluate_at(start, weights) < reach)
            if not len(chosen):
                continue
            found = self.find_minima(start, weights[chosen])
            height = np.where(best.converged, best.objective, np.inf)[chosen]
            lower = found.converged & (found.objective < height)
            for kept, column in zip(vars(best).values(), vars(found).values(), strict=True):
                kept[chosen[lower]] = column[lower]
        return best

    def _evaluate_at(self, theta: Array, weights: Array) -> Array:
        """Return the objective [K] of theta [P] for K problems with weights [K, R]."""
        delta = self.loss.deltas[-1]
        with np.errstate(all="ignore"):
            size = np.abs(self.curve(theta[None]).value[0] - self.log_loss)
            capped = np.minimum(size, delta)
            return np.asarray(weights @ (capped * (size - capped / 2)))

    def find_minima(
        self, start: Array, weights: Array, deltas: tuple[float, ...] | None = None
    ) -> Minima:
        """Return the minima of K problems with weights [K, R], from start [K, P] or [P]."""
        start = np.broadcast_to(start, (len(weights), start.shape[-1]))
        deltas = deltas or self.loss.deltas
        return minimise(self.curve, start, self.log_loss, weights, deltas, self.search)

    def valid(self, theta: Array, vanishing: bool = False) -> Mask:
        """Return a mask [K]: whether all constants of theta [K, P] are positive and finite.

        With `vanishing`, the constant of `self.vanishing` may also be 0.
        """
        with np.errstate(over="ignore"):
            constants = self.forms(theta).constants
        if vanishing and self.vanishing is not None:
            constants = constants | {self.vanishing.constant: 1.0}
        columns = np.stack(np.broadcast_arrays(*constants.values()))
        valid: Mask = (np.isfinite(columns) & (columns > 0)).all(axis=0)
        return valid

    def refit_weighted(self, starts: Array, weights: Array) -> Array:
        """Return theta [K, P] of the best minima from starts [S, P], for K problems.

        The rows have weights [K, R]. A problem without a minimum with positive constants has one
        with the vanishing constant at 0, or is NaN. Leaving out those at 0 would hide the doubt
        that they show.
        """
        return self._replace_vanished(self.find_best_minima(starts, weights), starts, weights)

    def refit_subsets(self, starts: Array, masks: Mask) -> Array:
        """Return theta [K, P] as `refit_weighted` does, for K subsets of the rows [K, R].

        All starts of all subsets are searched together, which is faster for many starts of few
        subsets.
        """
        count = len(masks)
        weights = np.tile(masks.astype(np.float64), (len(starts), 1))
        found = self.find_minima(np.repeat(starts, count, axis=0), weights)
        good = found.converged & self.valid(found.theta)
        heights = np.where(good, found.objective, np.inf).reshape(len(starts), count)
        best = found.take(np.argmin(heights, axis=0) * count + np.arange(count))
        return self._replace_vanished(best, starts, masks.astype(np.float64))

    def _replace_vanished(self, found: Minima, starts: Array, weights: Array) -> Array:
        good = found.converged & self.valid(found.theta)
        theta = np.where(good[:, None], found.theta, np.nan)
        theta[~good] = self.find_vanished(starts, weights[~good])
        return theta

    def find_vanished(self, starts: Array, weights: Array) -> Array:
        """Return theta [K, P] of the best minima in which the vanishing constant is 0.

        A problem without such a minimum, or a form without such a constant, gives NaN. Where the
        objective falls as the constant grows from 0, the minimum is elsewhere.
        """
        found = np.full((len(weights), starts.shape[1]), np.nan)
        if self.vanishing is None or not len(weights):
            return found
        at = self.vanishing.coordinate
        pinned = replace(self, curve=Pinned(self.curve, at, VANISHED))
        minima = pinned.find_best_minima(np.delete(starts, at, axis=1), weights)
        theta = np.insert(minima.theta, at, VANISHED, axis=1)
        good = minima.converged & self.valid(theta, vanishing=True)
        good &= self._rises_from_zero(theta, weights)
        found[good] = theta[good]
        return found

    def _rises_from_zero(self, theta: Array, weights: Array) -> Mask:
        """Return a mask [K]: whether the objective rises as the vanishing constant grows from 0.

        The constant is added to the loss, so the derivative of the log loss is 1 / loss.
        """
        delta = self.loss.deltas[-1]
        with np.errstate(all="ignore"):
            predicted = self.curve(theta).value
            pull = np.clip(predicted - self.log_loss, -delta, delta)
            slope = (weights * pull * np.exp(-predicted)).sum(axis=1)
        rises: Mask = slope >= 0
        return rises


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

        A draw without a minimum is NaN.
        """
        starts = np.concatenate([self.theta[None], self.rivals])
        return self.regression.refit_weighted(starts, np.asarray(counts, dtype=np.float64))

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
