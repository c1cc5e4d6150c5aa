"""Chinchilla's third approach: the parametric law fitted to all runs at once.

Hoffmann et al. 2022 (arXiv:2203.15556, section D.2), as corrected by Besiroglu et al. 2024
(arXiv:2404.10102): log L = log(e^(ln A - alpha ln N) + e^(ln B - beta ln D) + e^(ln E)), Huber's
loss of its residuals, summed.

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
    """How the parametric law is fitted. The sum over runs is minimised; there is no mean here.

    Starts: each alpha, beta and E of these, with the A and B that fit best by least squares then,
    so that they suit runs of any size and need no guess of A and B.
    """

    loss: Loss = Huber()
    exponents: Shares = (0.1, 0.2, 0.35, 0.6, 1.0)  # of alpha and of beta to start from
    floors: Shares = (0.2, 0.5, 0.8, 0.95)  # of E to start from: shares of the least loss
    search: MinimiseSettings = Field(MinimiseSettings())


def fit_parametric(runs: RunsTable, settings: ParametricFit | None = None) -> Fit[Parametric]:
    """The parametric law of `runs`. Raises DataError where they cannot tell its constants."""
    return build_regression(runs, settings or ParametricFit()).fit()


def build_regression(runs: RunsTable, settings: ParametricFit) -> Regression[Parametric]:
    """The regression of log loss on the five constants.

    Its coordinates are ln A and ln B at the middle of the runs (alpha and ln A are otherwise all
    but one direction), ln E, alpha and beta: the same minimum, better told apart.
    """
    check_spread(runs, "Parametric", constants=5)
    log_n, log_d = np.log(runs.parameters), np.log(runs.tokens)
    middle = float(log_n.mean()), float(log_d.mean())
    log_n, log_d = log_n - middle[0], log_d - middle[1]
    one, zero = np.ones_like(log_n), np.zeros_like(log_n)
    designs = np.array(
        [
            [one, zero, zero, -log_n, zero],
            [zero, one, zero, zero, -log_d],
            [zero, zero, one, zero, zero],
        ]
    ).transpose(0, 2, 1)

    def forms(theta: Array) -> Parametric:
        a, b, e, alpha, beta = np.moveaxis(theta, -1, 0)
        with np.errstate(over="ignore"):  # an exponent that nothing bounds takes its factor along
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
    """[S, 5]."""
    starts = []
    for alpha, beta, floor in itertools.product(
        settings.exponents, settings.exponents, settings.floors
    ):
        terms = np.stack([np.exp(-alpha * log_n), np.exp(-beta * log_d)], axis=1)
        starts.append([*fit_above_floor(terms, loss, floor), alpha, beta])
    return np.array(starts)


def fit_above_floor(terms: Array, loss: Array, floor: float) -> tuple[float, float, float]:
    """Logs of the two multiples of `terms` [R, 2] nearest to the loss above E, and of E.

    Positive ones: each at least a hundredth of what is left above E.
    """
    above = loss - floor * loss.min()
    first, second = np.maximum(np.linalg.lstsq(terms, above)[0], above.mean() / 100)
    return float(np.log(first)), float(np.log(second)), float(np.log(floor * loss.min()))
