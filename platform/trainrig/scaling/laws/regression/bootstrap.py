"""Bootstrap intervals: fits repeated on resampled runs.

Pairs are drawn (a run with its loss), so nothing is assumed of the noise. Points of one training
run share its noise: drawn apart they would count as independent evidence, so by default whole
training runs (`trial`) are drawn.

A draw is a row of counts: how often it took each run. That is what a fit is asked with, and one
that can weigh its rows refits all draws together (`regression.Fit.refit_draws`).

Shapes: R rows (runs), K draws, Q quantities.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from trainrig.config import Field, Settings
from trainrig.errors import DataError
from trainrig.scaling.laws.fit_progress import Tell, ignore_progress
from trainrig.scaling.laws.forms import Array, Constants
from trainrig.scaling.laws.law import Interval, IntervalEstimate, compute_percentiles, refuse_draws
from trainrig.scaling.laws.regression.regression import Fit
from trainrig.scaling.laws.runs_table import RunsTable

F = TypeVar("F", bound=Constants)
Counts = NDArray[np.int64]
Refit = Callable[[Counts], Array]  # counts [K, R] to quantities [K, Q], NaN where there is no fit


class Bootstrap(Settings):
    """How many draws, of what, and which share of them the interval holds."""

    draws: int = Field(1000, ge=20)
    seed: int = Field(0, ge=0)
    resample: Literal["trials", "rows"] = "trials"  # whole training runs, or each row by itself
    level: float = Field(0.95, gt=0, lt=1)


@dataclass(frozen=True)
class Draws:
    """Quantities refitted to each draw."""

    values: Array  # [K, Q]; NaN where the draw has no fit
    level: float

    @property
    def failed(self) -> int:
        """How many draws have no fit."""
        return int(np.isnan(self.values).any(1).sum())

    @property
    def good(self) -> Array:
        """[K - failed, Q]."""
        return self.values[~np.isnan(self.values).any(1)]

    def estimate(self, value: float, drawn: Array) -> IntervalEstimate:
        """`value` with the interval and the standard error of `drawn`, its values by draw."""
        finite = len(drawn) > 1 and bool(np.isfinite(drawn).all())
        return IntervalEstimate(
            value=value,
            bootstrap=self.compute_interval(drawn),
            standard_error=float(np.std(drawn, ddof=1)) if finite else None,
        )

    def compute_interval(self, drawn: Array) -> Interval:
        """The percentiles of `drawn`. Raises DataError where too many draws have no fit."""
        if why := refuse_draws(len(self.good), self.failed):
            raise DataError(why)
        return compute_percentiles(drawn, self.level)


def draw_counts(
    runs: RunsTable, settings: Bootstrap, strata: NDArray[np.generic] | None = None
) -> Counts:
    """[K, R]: how often each draw takes each row. The same settings, the same counts.

    `strata` [R] keeps the rows of each kind as many as they are, such as those of one budget: a
    training run is then drawn within each.
    """
    rng = np.random.default_rng(settings.seed)
    kinds = (
        np.zeros(len(runs), int) if strata is None else np.unique(strata, return_inverse=True)[1]
    )
    counts = np.zeros((settings.draws, len(runs)), dtype=np.int64)
    for kind in range(kinds.max() + 1):
        rows = np.flatnonzero(kinds == kind)
        names = runs.trial[rows] if settings.resample == "trials" else rows
        _, cluster = np.unique(names, return_inverse=True)
        size = int(cluster.max()) + 1
        drawn = rng.multinomial(size, np.full(size, 1 / size), size=settings.draws)
        counts[:, rows] = drawn[:, cluster]
    return counts


def bootstrap(
    refit: Refit,
    runs: RunsTable,
    settings: Bootstrap,
    strata: NDArray[np.generic] | None = None,
) -> Draws:
    """Whatever `refit` gives of each draw of `runs`."""
    return Draws(refit(draw_counts(runs, settings, strata)), settings.level)


def make_refit(
    fit: Callable[[RunsTable], Sequence[float] | Array], runs: RunsTable, quantities: int
) -> Refit:
    """A refit of a `fit` that takes a table of runs; a draw that it refuses has no fit."""

    def refit(counts: Counts) -> Array:
        values = np.full((len(counts), quantities), np.nan)
        for row, count in zip(values, counts, strict=True):
            try:
                row[:] = fit(runs.select(np.repeat(np.arange(len(runs)), count)))
            except DataError:
                continue
        return values

    return refit


@dataclass(frozen=True)
class FormDraws(Generic[F]):
    """The forms refitted to each draw."""

    fit: Fit[F]
    draws: Draws  # of theta
    clusters: int | None  # training runs drawn whole; None: rows were

    @property
    def stacked(self) -> F:
        """One form whose constants are arrays over the draws that have a fit."""
        return self.fit.regression.forms(self.draws.good)

    @property
    def forms(self) -> tuple[F, ...]:
        """A form for each draw that has a fit: what a law's file holds."""
        names = self.fit.fitted
        columns = [np.asarray(self.stacked.constants[name]).tolist() for name in names]
        rows = zip(*columns, strict=True)
        form = self.fit.form
        return tuple(form.with_constants(dict(zip(names, row, strict=True))) for row in rows)

    def compute_estimates(
        self, quantities: Mapping[str, Callable[[F], Array | float]] | None = None
    ) -> dict[str, IntervalEstimate]:
        """Each fitted constant with its interval, then each of `quantities`.

        A quantity is asked of the form, and of `stacked`, whose constants are arrays.
        """
        form, stacked = self.fit.form, self.stacked
        asked: dict[str, tuple[float, Array]] = {
            name: (value, self._replace_endless(name, np.asarray(stacked.constants[name])))
            for name, value in form.constants.items()
            if name in self.fit.fitted
        }
        for name, quantity in (quantities or {}).items():
            asked[name] = float(quantity(form)), np.asarray(quantity(stacked))
        return {name: self.draws.estimate(value, drawn) for name, (value, drawn) in asked.items()}

    def _replace_endless(self, name: str, drawn: Array) -> Array:
        largest = self.fit.regression.largest.get(name, np.inf)
        return np.where(drawn < largest * (1 - 1e-9), drawn, np.inf)  # an exponential rounds


def bootstrap_form(fit: Fit[F], settings: Bootstrap, tell: Tell = ignore_progress) -> FormDraws[F]:
    """`fit` refitted to each draw of its runs, from its own minimum."""
    runs = fit.regression.runs
    whole = settings.resample == "trials" and len(set(runs.trial)) < len(runs)
    clusters = len(set(runs.trial)) if whole else None
    size = fit.regression.search.batch

    def refit(counts: Counts) -> Array:
        """As the search takes them, so that the lots change no digit."""
        found = []
        for begin in range(0, len(counts), size):
            found.append(fit.refit_draws(counts[begin : begin + size]))
            tell(min(begin + size, len(counts)), len(counts))
        return np.concatenate(found)

    return FormDraws(fit, bootstrap(refit, runs, settings), clusters)
