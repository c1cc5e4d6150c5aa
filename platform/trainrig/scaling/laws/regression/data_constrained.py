"""The data-constrained law fitted: how fast repeated tokens, and parameters beyond them, fade.

Muennighoff et al. 2023 (arXiv:2305.16264, section 5): log loss, Huber's loss of its residuals,
summed. The paper fixes the base law and fits two constants to runs that repeat their data. Its
R_D* is weakly told by those runs, so take the profile's interval and not the number alone.

Shapes: R runs, S starts, K thetas, P coordinates: of the base law, if it is fitted, then ln r_d
and ln r_n.
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

REPEATED = 1.5  # epochs: what has seen its data more often tells of repeats
LARGEST = 1e6  # of r_d and r_n: nothing fades any more, and a larger one changes no loss
LEAST_LEVELS = 2  # different numbers of epochs above that


class DataConstrainedFit(Settings):
    """How the data-constrained law is fitted.

    Starts: each r_d with each r_n of these; the base law, if it is fitted along, from the
    parametric law of the runs that repeat nothing, or of all where those are too few.
    """

    base: Parametric | None = None  # None: fitted along
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
    )  # of r_d and of r_n to start from
    # where nothing fades, the valley is long
    search: MinimiseSettings = Field(MinimiseSettings(tolerance=1e-9))


def fit_data_constrained(
    runs: RunsTable, settings: DataConstrainedFit | None = None
) -> Fit[DataConstrained]:
    """The data-constrained law of `runs`. Raises DataError where they cannot tell its constants.

    Runs without `unique_tokens` count as having seen each token once.
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
        start, bases = np.empty(0), _make_constant_base(given)

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
    """[R] the different tokens that each run had; all of them where it does not say."""
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
            f" {2 + SPARE} such runs at {LEAST_LEVELS} or more, of {constants + SPARE} in all;"
            f" add at least {missing} of, say, 4 and 16 epochs"
        )


def _fit_free_base(
    runs: RunsTable, settings: DataConstrainedFit
) -> tuple[Array, Callable[[Array], Parametric]]:
    """A start for the base law's coordinates, and the laws that coordinates stand for."""
    how = ParametricFit(loss=settings.loss, search=settings.search)
    once = runs.select(runs.tokens <= REPEATED * count_unique_tokens(runs))
    try:
        fit = fit_parametric(once, how)
    except DataError:
        fit = fit_parametric(runs, how)
    return fit.theta, fit.regression.forms


def _find_middle(bases: Callable[[Array], Parametric]) -> tuple[float, float]:
    """Of ln N and ln D: where ln A and ln B of `bases` are taken, as exponents of 1 show it."""
    form = bases(np.array([0.0, 0.0, 0.0, 1.0, 1.0]))
    return float(np.log(form.A)), float(np.log(form.B))


def _convert_to_coordinates(base: Parametric) -> Array:
    """[5] `base` as coordinates, ln A and ln B at 0."""
    return np.array([np.log(base.A), np.log(base.B), np.log(base.E), base.alpha, base.beta])


def _make_constant_base(base: Parametric) -> Callable[[Array], Parametric]:
    return lambda theta: base
