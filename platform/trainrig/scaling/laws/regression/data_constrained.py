"""Fit of the data-constrained law: how fast repeated tokens and excess parameters lose value.

As in Muennighoff et al. 2023 (arXiv:2305.16264, section 5), the sum of Huber's loss of the
residuals of log loss is minimised. The paper fixes the base law and fits two constants to runs that
repeat their data. Those runs determine R_D* poorly, so use its profile interval and not just the
value.

Shapes: R runs, S starts, K thetas, P coordinates: those of the base law, if it is fitted, then ln
r_d and ln r_n.
"""

import itertools
from collections.abc import Callable

import numpy as np

from trainrig.config import Field, Settings
from trainrig.errors import DataError
from trainrig.scaling.laws.forms import Array, DataConstrained, Parametric
from trainrig.scaling.laws.regression.data_constrained_curve import DataConstrainedCurve
from trainrig.scaling.laws.regression.identifiability import SPARE, check_numbers
from trainrig.scaling.laws.regression.minimise import Huber, Loss, MinimiseSettings
from trainrig.scaling.laws.regression.parametric import ParametricFit, Shares, fit_parametric
from trainrig.scaling.laws.regression.regression import Fit, Regression
from trainrig.scaling.laws.runs_table import RunsTable

REPEATED = 1.5  # runs with more epochs count as repeating their data
# Upper bound of r_d and r_n; repeats then lose no value, and larger values change no loss.
LARGEST = 1e6
LEAST_LEVELS = 2  # different numbers of epochs above REPEATED that a fit needs


class DataConstrainedFit(Settings):
    """Settings of fitting the data-constrained law.

    The search starts at each pair of r_d and r_n from `repeats`. The base law, if it is fitted too,
    starts at the parametric law of the runs that repeat nothing, or of all runs if those are too
    few.
    """

    base: Parametric | None = None  # None: fitted together with r_d and r_n
    loss: Loss = Huber()
    repeats: Shares = (
        1.0,
        2.0,
        4.0,
        8.0,
        16.0,
        32.0,
        64.0,
        128.0,
    )  # starting values of r_d and of r_n
    # looser than the default: the minimum is a long valley if repeats lose no value
    search: MinimiseSettings = Field(MinimiseSettings(tolerance=1e-9))


def fit_data_constrained(
    runs: RunsTable, settings: DataConstrainedFit | None = None
) -> Fit[DataConstrained]:
    """Fit the data-constrained law to `runs`.

    Runs without `unique_tokens` count as having seen each token once. Raises DataError if the runs
    do not determine the constants.
    """
    settings = settings or DataConstrainedFit()
    check_numbers(runs)
    _check_repeats(runs, constants=2 if settings.base else 7)
    unique = count_unique_tokens(runs)
    log_repeats = np.log(list(itertools.product(settings.repeats, repeat=2)))  # [S, 2]
    given = settings.base
    if given is None:
        start, bases = _fit_free_base(runs, settings)
    else:
        start = np.empty(0)
        bases = _make_constant_base(given)

    def forms(theta: Array) -> DataConstrained:
        r_d, r_n = np.moveaxis(np.exp(np.minimum(theta[..., -2:], np.log(LARGEST))), -1, 0)
        return DataConstrained.model_construct(base=bases(theta[..., :-2]), r_d=r_d, r_n=r_n)

    starts = np.concatenate([np.tile(start, (len(log_repeats), 1)), log_repeats], axis=1)
    logs = np.log(runs.parameters), np.log(runs.tokens), np.log(np.minimum(unique, runs.tokens))
    if given is None:
        curve = DataConstrainedCurve(logs, _find_middle(bases), LARGEST)
    else:
        curve = DataConstrainedCurve(logs, (0.0, 0.0), LARGEST, _convert_to_coordinates(given))
    largest = {"r_d": LARGEST, "r_n": LARGEST}
    return Regression(runs, curve, starts, settings.loss, forms, settings.search, largest).fit()


def count_unique_tokens(runs: RunsTable) -> Array:
    """Return the number [R] of different tokens in each run: all its tokens where unknown."""
    return np.where(np.isnan(runs.unique_tokens), runs.tokens, runs.unique_tokens)


def _check_repeats(runs: RunsTable, constants: int) -> None:
    epochs = runs.tokens / count_unique_tokens(runs)
    repeated = epochs[epochs > REPEATED]
    levels = len(np.unique(np.round(np.log2(repeated), 1)))
    if len(repeated) < 2 + SPARE or levels < LEAST_LEVELS or len(runs) < constants + SPARE:
        missing = max(2 + SPARE - len(repeated), LEAST_LEVELS - levels, 1)
        raise DataError(
            f"{len(repeated)} of {len(runs)} runs repeat their data (tokens above {REPEATED:g}"
            f" times unique_tokens), at {levels} numbers of epochs: DataConstrained needs"
            f" {2 + SPARE} such runs at {LEAST_LEVELS} or more, and {constants + SPARE} runs in"
            f" all; add at least {missing} of, for example, 4 and 16 epochs"
        )


def _fit_free_base(
    runs: RunsTable, settings: DataConstrainedFit
) -> tuple[Array, Callable[[Array], Parametric]]:
    """Return starting coordinates of the base law, and a function from coordinates to laws."""
    how = ParametricFit(loss=settings.loss, search=settings.search)
    once = runs.select(runs.tokens <= REPEATED * count_unique_tokens(runs))
    try:
        fit = fit_parametric(once, how)
    except DataError:
        fit = fit_parametric(runs, how)
    return fit.theta, fit.regression.forms


def _find_middle(bases: Callable[[Array], Parametric]) -> tuple[float, float]:
    """Return the ln N and ln D to which the coordinates ln A and ln B of `bases` refer."""
    form = bases(np.array([0.0, 0.0, 0.0, 1.0, 1.0]))
    return float(np.log(form.A)), float(np.log(form.B))


def _convert_to_coordinates(base: Parametric) -> Array:
    """Return `base` as coordinates [5], with ln A and ln B at ln N = ln D = 0."""
    return np.array([np.log(base.A), np.log(base.B), np.log(base.E), base.alpha, base.beta])


def _make_constant_base(base: Parametric) -> Callable[[Array], Parametric]:
    return lambda theta: base
