"""Fit of Kaplan's joint law of parameters and tokens to all runs.

The law is L(N, D) = ((n_c/N)^(alpha_n/alpha_d) + d_c/D)^alpha_d (Kaplan et al. 2020,
arXiv:2001.08361, equation 1.5). It is fitted by the same robust regression of log loss as the
parametric law.

Shapes: K thetas, R runs, S starts.
"""

import itertools

import numpy as np

from trainrig.config import Field, Settings
from trainrig.scaling.laws.forms import Array, Kaplan, Positive
from trainrig.scaling.laws.regression.identifiability import check_spread
from trainrig.scaling.laws.regression.minimise import (
    CurveValue,
    Huber,
    LogSumExp,
    Loss,
    MinimiseSettings,
)
from trainrig.scaling.laws.regression.regression import Fit, Regression
from trainrig.scaling.laws.runs_table import RunsTable


class KaplanFit(Settings):
    """Settings of fitting Kaplan's law.

    The search starts at each pair of exponents, with the n_c and d_c that fit best for them.
    """

    loss: Loss = Huber()
    # Starting values of alpha_n and alpha_d.
    exponents: tuple[Positive, ...] = (0.03, 0.06, 0.1, 0.2, 0.4)
    search: MinimiseSettings = Field(MinimiseSettings())


def fit_kaplan_form(runs: RunsTable, settings: KaplanFit | None = None) -> Fit[Kaplan]:
    """Fit Kaplan's law to `runs`. Raises DataError if they do not determine its constants."""
    rules = settings or KaplanFit()
    check_spread(runs, "Kaplan", constants=4)
    log_n = np.log(runs.parameters)
    log_d = np.log(runs.tokens)
    middle = float(log_n.mean()), float(log_d.mean())
    log_n = log_n - middle[0]
    log_d = log_d - middle[1]

    def forms(theta: Array) -> Kaplan:
        s, t, power, alpha_d = np.moveaxis(theta, -1, 0)
        with np.errstate(over="ignore"):  # a bootstrap draw may not bound n_c
            n_c = np.exp(s / power + middle[0])
            d_c = np.exp(t + middle[1])
        return Kaplan.model_construct(n_c=n_c, d_c=d_c, alpha_n=power * alpha_d, alpha_d=alpha_d)

    starts = _build_starts(log_n, log_d, runs.loss, rules.exponents)
    curve = _Curve(log_n, log_d)
    return Regression(runs, curve, starts, rules.loss, forms, rules.search).fit()


class _Curve:
    """Curve f = alpha_d log(e^(s - p log N) + e^(t - log D)) at theta = (s, t, p, alpha_d).

    Here p is alpha_n / alpha_d. log N and log D are relative to their means over the runs.
    """

    def __init__(self, log_n: Array, log_d: Array) -> None:
        one = np.ones_like(log_n)
        zero = np.zeros_like(log_n)
        # The fourth coordinate of the inner sum is fixed at 1 and holds the terms without a
        # constant.
        first = [one, zero, -log_n, zero]
        second = [zero, one, zero, -log_d]
        self._inner = LogSumExp(np.array([first, second]).transpose(0, 2, 1))

    def __call__(self, theta: Array) -> CurveValue:
        alpha_d = theta[:, 3, None]
        inner = self._inner(np.concatenate([theta[:, :3], np.ones_like(alpha_d)], axis=1))
        slope = np.concatenate(
            [alpha_d[..., None] * inner.slope[..., :3], inner.value[..., None]], axis=-1
        )

        def bend(coefficients: Array) -> Array:
            bent = alpha_d[..., None] * inner.bend(coefficients)
            cross = (coefficients[:, None] @ inner.slope)[:, 0]
            bent[:, 3, :] = bent[:, :, 3] = cross
            bent[:, 3, 3] = 0
            return bent

        return CurveValue(alpha_d * inner.value, slope, bend)


def _build_starts(log_n: Array, log_d: Array, loss: Array, exponents: tuple[float, ...]) -> Array:
    """Return the starts [S, 4], one for each pair of exponents.

    For given exponents, L^(1/alpha_d) is linear in n_c^p and d_c. Both are kept positive.
    """
    starts = []
    for alpha_n, alpha_d in itertools.product(exponents, exponents):
        power = alpha_n / alpha_d
        whole = (loss / loss.min()) ** (1 / alpha_d)
        terms = np.stack([np.exp(-power * log_n), np.exp(-log_d)], axis=1) / whole[:, None]
        best = np.linalg.lstsq(terms, np.ones_like(loss))[0]
        s, t = np.log(np.maximum(best, 1e-2 / terms.mean(axis=0))) + np.log(loss.min()) / alpha_d
        starts.append([s, t, power, alpha_d])
    return np.array(starts)
