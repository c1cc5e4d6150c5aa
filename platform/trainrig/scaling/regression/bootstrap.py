"""Bootstrap intervals: fits repeated on resampled runs.

Runs are resampled with their losses, so no noise model is assumed. Points of one training run share
its noise and are not independent evidence, so by default whole training runs (`trial`) are
resampled.

A draw is a row of counts: how often it took each run. A fit that accepts row weights refits all
draws in one batch (`regression.Fit.refit_draws`).

Shapes: R rows (runs), K draws, Q quantities.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from trainrig.config import Field, Settings
from trainrig.errors import DataError
from trainrig.scaling.laws.law import Interval, IntervalEstimate, compute_percentiles, refuse_draws
from trainrig.scaling.laws.law_forms import Array, Constants
from trainrig.scaling.laws.runs_table import RunsTable
from trainrig.scaling.regression.regression import Fit, ReportProgress, ignore_progress

F = TypeVar("F", bound=Constants)
Counts = NDArray[np.int64]
# Counts [K, R] to quantities [K, Q], NaN if a draw cannot be fitted.
Refit = Callable[[Counts], Array]


class Bootstrap(Settings):
    """Settings of the bootstrap."""

    draws: int = Field(1000, ge=20)
    seed: int = Field(0, ge=0)
    resample: Literal["trials", "rows"] = "trials"  # whole training runs, or single rows
    level: float = Field(0.95, gt=0, lt=1)


@dataclass(frozen=True)
class Draws:
    """Quantities refitted to each bootstrap draw."""

    values: Array  # [K, Q], NaN where the draw cannot be fitted
    level: float

    @property
    def failed(self) -> int:
        """Number of draws without a fit."""
        return int(np.isnan(self.values).any(1).sum())

    @property
    def good(self) -> Array:
        """The values of the draws with a fit, [K - failed, Q]."""
        return self.values[~np.isnan(self.values).any(1)]

    def estimate(self, value: float, drawn: Array) -> IntervalEstimate:
        """Return `value` with the interval and standard error of `drawn`, its values by draw."""
        finite = len(drawn) > 1 and bool(np.isfinite(drawn).all())
        return IntervalEstimate(
            value=value,
            bootstrap=self.compute_interval(drawn),
            standard_error=float(np.std(drawn, ddof=1)) if finite else None,
        )

    def compute_interval(self, drawn: Array) -> Interval:
        """Compute the percentile interval of `drawn`. Raises DataError if too many draws failed."""
        if why := refuse_draws(len(self.good), self.failed):
            raise DataError(why)
        return compute_percentiles(drawn, self.level)


def draw_counts(
    runs: RunsTable, settings: Bootstrap, strata: NDArray[np.generic] | None = None
) -> Counts:
    """Return how often each draw takes each row, [K, R]. The same settings give the same counts.

    `strata` [R] labels groups of rows, such as budgets. Trials are then drawn separately within
    each group, as many as it has.
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
    refit: Refit, runs: RunsTable, settings: Bootstrap, strata: NDArray[np.generic] | None = None
) -> Draws:
    """Refit quantities to bootstrap draws of `runs` with `refit`."""
    return Draws(refit(draw_counts(runs, settings, strata)), settings.level)


@dataclass(frozen=True)
class FormDraws(Generic[F]):
    """Forms refitted to each bootstrap draw."""

    fit: Fit[F]
    draws: Draws  # draws of theta
    clusters: int | None  # number of training runs that were resampled; None: rows were resampled

    @property
    def stacked(self) -> F:
        """The form with constants that are arrays over the draws with a fit."""
        return self.fit.regression.forms(self.draws.good)

    @property
    def forms(self) -> tuple[F, ...]:
        """The forms of the draws with a fit, as a law's file holds them."""
        stacked = self.stacked.constants
        rows = zip(*(np.asarray(column).tolist() for column in stacked.values()), strict=True)
        form = self.fit.form
        return tuple(form.with_constants(dict(zip(stacked, row, strict=True))) for row in rows)

    def compute_estimates(
        self, quantities: Mapping[str, Callable[[F], Array | float]] | None = None
    ) -> dict[str, IntervalEstimate]:
        """Estimate each fitted constant and each of `quantities`, with intervals.

        A quantity is a function of a form. It is called with the fitted form, then with `stacked`,
        whose constants are arrays.
        """
        form = self.fit.form
        stacked = self.stacked
        asked: dict[str, tuple[float, Array]] = {
            name: (value, self._replace_endless(name, np.asarray(stacked.constants[name])))
            for name, value in form.constants.items()
        }
        for name, quantity in (quantities or {}).items():
            asked[name] = float(quantity(form)), np.asarray(quantity(stacked))
        return {name: self.draws.estimate(value, drawn) for name, (value, drawn) in asked.items()}

    def _replace_endless(self, name: str, drawn: Array) -> Array:
        largest = self.fit.regression.largest.get(name, np.inf)
        # Tolerates the rounding of exp.
        return np.where(drawn < largest * (1 - 1e-9), drawn, np.inf)


def bootstrap_form(
    fit: Fit[F], settings: Bootstrap, report: ReportProgress = ignore_progress
) -> FormDraws[F]:
    """Refit `fit` to each bootstrap draw of its runs, starting from its own minimum."""
    runs = fit.regression.runs
    whole = settings.resample == "trials" and len(set(runs.trial)) < len(runs)
    clusters = len(set(runs.trial)) if whole else None
    size = fit.regression.search.batch

    def refit(counts: Counts) -> Array:
        """Refit in batches of the search's own size, so that batching changes no digit."""
        found = []
        for begin in range(0, len(counts), size):
            found.append(fit.refit_draws(counts[begin : begin + size]))
            report(min(begin + size, len(counts)), len(counts))
        return np.concatenate(found)

    return FormDraws(fit, bootstrap(refit, runs, settings), clusters)
