"""Predictions of larger runs from smaller ones, by which forms of a law are compared.

At several cuts of the runs, by compute, by parameters and by tokens, a form is fitted to the runs
below and predicts those above (rolling origin). Runs that a law is asked about are larger in any of
the three. Bootstrap draws of each fit say how far off a prediction was expected to be.

Shapes: R rows, H held-out rows, K draws.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from trainrig.config import Field, Settings
from trainrig.errors import DataError
from trainrig.scaling.laws.law_forms import Array, Form
from trainrig.scaling.laws.runs_table import Floats, RunsTable, count_unique_tokens
from trainrig.scaling.laws.stacking import measure_distance
from trainrig.scaling.regression.bootstrap import Bootstrap, draw_counts
from trainrig.scaling.regression.regression import Fit

Mask = NDArray[np.bool_]
TIED = 1.02  # runs within this factor of the threshold are held out, too


class HoldOut(Settings):
    """Settings that select the held-out runs. The law itself is fitted to all runs."""

    # Quantity by which the largest runs are held out.
    by: Literal["flops", "parameters", "tokens"] = "flops"
    # Share of the runs to hold out; 0: none, and the law is not evaluated.
    share: float = Field(0.1, ge=0, lt=1)


@dataclass(frozen=True)
class HeldOutSplit:
    """Table of runs split into held-out runs and the rest, with a description of the rule."""

    rest: RunsTable
    largest: RunsTable
    held: Mask  # [R] whether each row is held out
    below: Mask  # [R] whether each row is among the rest
    rule: str

    @property
    def distance(self) -> Array:
        """The log distance [H] of each held-out run from the rest."""
        rest = self.rest
        greatest = (rest.parameters.max(), rest.tokens.max(), rest.flops_6nd.max())
        return measure_distance(self.largest.parameters, self.largest.tokens, greatest)

    def lift(self, among: Mask) -> "HeldOutSplit":
        """Return the split with masks over a larger table, whose rows `among` are this one's."""
        held = np.zeros(len(among), dtype=bool)
        below = held.copy()
        held[among] = self.held
        below[among] = self.below
        return replace(self, held=held, below=below)


def split_held_out(runs: RunsTable, rules: HoldOut) -> HeldOutSplit:
    """Split `runs` into the largest `share`, including ties, and the rest.

    Raises DataError if no run or all runs would be held out.
    """
    values: Floats = runs.flops_6nd if rules.by == "flops" else getattr(runs, rules.by)
    count = int(np.ceil(rules.share * len(runs)))
    threshold = np.sort(values)[-count] if count else np.inf
    held: Mask = values >= threshold / TIED
    if not held.any() or held.all():
        raise DataError(
            f"{int(held.sum())} of {len(runs)} runs would be held out as the largest by "
            f"{rules.by}; choose a share that holds out some runs and leaves some with less "
            f"{rules.by}"
        )
    many = "run" if held.sum() == 1 else f"{int(held.sum())} runs"
    rule = f"the {many} of {threshold / TIED:.3g} {rules.by} or more"
    return HeldOutSplit(runs.select(~held), runs.select(held), held, ~held, rule)


def predict(form: Form, runs: RunsTable) -> Array:
    """Predict the loss [R] of each run by `form`, with repeated tokens where they are known."""
    return form.compute_loss(runs.parameters, runs.tokens, count_unique_tokens(runs))


CUTS = 2  # cuts of the runs along each axis at which each form foretells the runs above
FIRST_CUT = 0.8  # share of the runs below the first cut
CUT_DRAWS = 20  # bootstrap draws of the fit at each cut
EVERY_START = 10  # every start of this number is searched again at a cut
AXES: tuple[Literal["flops", "parameters", "tokens"], ...] = ("flops", "parameters", "tokens")


@dataclass(frozen=True)
class CutForecast:
    """Predictions of the runs above one cut by a form that was fitted to the runs below."""

    split: HeldOutSplit
    theta: Array  # [P] coordinates of the fit to the runs below
    predicted: Array  # [H] nats per token
    noise: float  # standard deviation of the log losses below the cut around the fit

    @property
    def errors(self) -> Array:
        """The absolute relative errors [H]."""
        return np.abs(self.predicted / self.split.largest.loss - 1)


@dataclass(frozen=True)
class Foretold:
    """Predictions of one form at the cuts at which it can be fitted, by number of the cut."""

    cuts: Mapping[int, CutForecast]

    def compute_error(self, cuts: Sequence[int]) -> float:
        """Compute the mean over `cuts` of the mean error at each."""
        return float(np.mean([self.cuts[cut].errors.mean() for cut in cuts]))

    def compute_standard_error(self, cuts: Sequence[int]) -> float:
        """Compute the standard error of that mean. The points of one training run count as one."""
        names = np.concatenate([self.cuts[cut].split.largest.trial for cut in cuts])
        every = [self.cuts[cut].errors for cut in cuts]
        parts = [(errors - errors.mean()) / len(errors) / len(cuts) for errors in every]
        _, cluster = np.unique(names, return_inverse=True)
        together = np.bincount(cluster, np.concatenate(parts))
        clusters = len(together)
        return float(np.sqrt(together @ together * clusters / max(clusters - 1, 1)))

    def list_trials(self, cuts: Sequence[int]) -> set[str]:
        """Return the names of the training runs that were foretold at `cuts`."""
        return {str(name) for cut in cuts for name in self.cuts[cut].split.largest.trial}


def list_cuts(runs: RunsTable, rules: HoldOut) -> dict[int, HeldOutSplit]:
    """Return the different cuts of `runs` by number, along all axes.

    Along an axis, they lie evenly from FIRST_CUT of the runs to all but the held-out share. There
    are none if no share is held out.
    """
    last = 1 - rules.share
    shares = np.linspace(FIRST_CUT, last, CUTS).tolist() if last > FIRST_CUT else [last]
    found: dict[int, HeldOutSplit] = {}
    for axis in AXES if rules.share else ():
        for share in shares:
            try:
                halves = split_held_out(runs, HoldOut(by=axis, share=1 - share))
            except DataError:
                continue
            if not any(np.array_equal(halves.held, other.held) for other in found.values()):
                found[len(found)] = halves
    return found


def foretell(fit: Fit[Any], cuts: Mapping[int, HeldOutSplit]) -> Foretold:
    """Fit the form of `fit` below each of `cuts`, and predict the runs above.

    A cut below which the runs do not identify the form is left out. Only the search starts from the
    fit to all runs: the constants at a cut are fitted to the runs below it.
    """
    regression = fit.regression
    identified = {cut: split for cut, split in cuts.items() if _identifies(fit, split.rest)}
    if not identified:
        return Foretold({})
    starts = np.concatenate([fit.theta[None], fit.rivals, regression.starts[::EVERY_START]])
    below = np.stack([split.below for split in identified.values()])
    thetas = regression.refit_subsets(starts, below)
    return Foretold(
        {
            cut: _forecast(fit, split, theta)
            for (cut, split), theta in zip(identified.items(), thetas, strict=True)
            if not np.isnan(theta).any()
        }
    )


def _identifies(fit: Fit[Any], rest: RunsTable) -> bool:
    try:
        fit.regression.check(rest)
    except DataError:
        return False
    return True


def _forecast(fit: Fit[Any], split: HeldOutSplit, theta: Array) -> CutForecast:
    form = fit.regression.forms(theta)
    residuals = np.log(split.rest.loss / predict(form, split.rest))
    noise = compute_noise(residuals, len(theta))
    return CutForecast(split, theta, predict(form, split.largest), noise)


def draw_forecast(fit: Fit[Any], forecast: CutForecast, rules: Bootstrap) -> Array:
    """Predict the runs above a cut by bootstrap draws [K, H] of the runs below.

    K is less than `rules` asks for where draws have no fit.
    """
    split = forecast.split
    counts = np.zeros((rules.draws, len(split.below)))
    counts[:, split.below] = draw_counts(split.rest, rules)
    thetas = fit.regression.refit_weighted(forecast.theta[None], counts)
    forms = [fit.regression.forms(theta) for theta in thetas if not np.isnan(theta).any()]
    drawn = [predict(form, split.largest) for form in forms]
    return np.array(drawn).reshape(len(drawn), len(split.largest))


def compute_noise(residuals: Array, constants: int) -> float:
    """Compute the standard deviation of log losses around a fit from its `residuals`.

    It is that of a normal distribution with their mean absolute value, which a few outliers move
    less than the mean square. Residuals are smaller than the noise because the constants adapt to
    it, so they are scaled up by the lost degrees of freedom.
    """
    freed = len(residuals) / max(len(residuals) - constants, 1)
    return float(np.abs(residuals).mean() * np.sqrt(np.pi / 2 * freed))
