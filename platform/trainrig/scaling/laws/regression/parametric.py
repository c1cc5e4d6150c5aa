"""Fit of the parametric law to all runs at once: approach 3 of Hoffmann et al.

The method is that of Hoffmann et al. 2022 (arXiv:2203.15556, section D.2), as corrected by
Besiroglu et al. 2024 (arXiv:2404.10102): log L = log(e^(ln A - alpha ln N) + e^(ln B - beta ln D) +
e^(ln E)), and the sum of Huber's loss of the residuals is minimised.

Shapes: R runs, S starts.
"""

import itertools

import numpy as np

from trainrig.config import Field, Settings
from trainrig.scaling.laws.forms import Array, Parametric, Positive
from trainrig.scaling.laws.regression.identifiability import check_spread
from trainrig.scaling.laws.regression.minimise import Huber, LogSumExp, Loss, MinimiseSettings
from trainrig.scaling.laws.regression.regression import Fit, Regression
from trainrig.scaling.laws.runs_table import RunsTable

Shares = tuple[Positive, ...]


class ParametricFit(Settings):
    """Settings of fitting the parametric law. The sum over runs is minimised, not the mean.

    The search starts at each triple of alpha, beta and E from `exponents` and `floors`, with the A
    and B that then fit best by least squares. So the starts suit runs of any size.
    """

    loss: Loss = Huber()
    exponents: Shares = (0.1, 0.2, 0.35, 0.6, 1.0)  # starting values of alpha and of beta
    floors: Shares = (0.2, 0.5, 0.8, 0.95)  # starting values of E, as shares of the least loss
    search: MinimiseSettings = Field(MinimiseSettings())


def fit_parametric(runs: RunsTable, settings: ParametricFit | None = None) -> Fit[Parametric]:
    """Fit the parametric law to `runs`. Raises DataError if they do not determine its constants."""
    return build_regression(runs, settings or ParametricFit()).fit()


def build_regression(runs: RunsTable, settings: ParametricFit) -> Regression[Parametric]:
    """Build the regression of log loss on the five constants.

    Its coordinates are ln A and ln B at the middle of the runs, ln E, alpha and beta. At the
    origin, alpha and ln A would be almost perfectly correlated. The minimum is the same.
    """
    check_spread(runs, "Parametric", constants=5)
    log_n = np.log(runs.parameters)
    log_d = np.log(runs.tokens)
    middle = float(log_n.mean()), float(log_d.mean())
    log_n = log_n - middle[0]
    log_d = log_d - middle[1]
    one = np.ones_like(log_n)
    zero = np.zeros_like(log_n)
    designs = np.array(
        [
            [one, zero, zero, -log_n, zero],
            [zero, one, zero, zero, -log_d],
            [zero, zero, one, zero, zero],
        ]
    ).transpose(0, 2, 1)

    def forms(theta: Array) -> Parametric:
        a, b, e, alpha, beta = np.moveaxis(theta, -1, 0)
        with np.errstate(over="ignore"):  # an unbounded exponent makes its factor infinite
            return Parametric.model_construct(
                E=np.exp(e),
                A=np.exp(a + alpha * middle[0]),
                B=np.exp(b + beta * middle[1]),
                alpha=alpha,
                beta=beta,
            )

    starts = _build_starts(log_n, log_d, runs.loss, settings)
    return Regression(runs, LogSumExp(designs), starts, settings.loss, forms, settings.search)


def _build_starts(log_n: Array, log_d: Array, loss: Array, settings: ParametricFit) -> Array:
    """Return the starts [S, 5], one for each triple of alpha, beta and E."""
    starts = []
    for alpha, beta, floor in itertools.product(
        settings.exponents, settings.exponents, settings.floors
    ):
        terms = np.stack([np.exp(-alpha * log_n), np.exp(-beta * log_d)], axis=1)
        starts.append([*fit_above_floor(terms, loss, floor), alpha, beta])
    return np.array(starts)


def fit_above_floor(terms: Array, loss: Array, floor: float) -> tuple[float, float, float]:
    """Return the logs of the two factors of `terms` [R, 2] that fit the loss above E, and of E.

    E is `floor` times the least loss. Each factor is at least a hundredth of the mean loss above E,
    so both are positive.
    """
    above = loss - floor * loss.min()
    first, second = np.maximum(np.linalg.lstsq(terms, above)[0], above.mean() / 100)
    return float(np.log(first)), float(np.log(second)), float(np.log(floor * loss.min()))
