"""Fits of the parametric law, of Kaplan's joint law and of the over-training law to all runs.

The parametric law is fitted by approach 3 of Hoffmann et al. 2022 (arXiv:2203.15556, section D.2),
as corrected by Besiroglu et al. 2024 (arXiv:2404.10102): log L = log(e^(ln A - alpha ln N) +
e^(ln B - beta ln D) + e^(ln E)), and the sum of Huber's loss of the residuals is minimised.

Kaplan's law is L(N, D) = ((n_c/N)^(alpha_n/alpha_d) + d_c/D)^alpha_d (Kaplan et al. 2020,
arXiv:2001.08361, equation 1.5), fitted by the same robust regression.

The over-training law of Gadre et al. 2024 (arXiv:2403.08540, section 3) has one exponent for both
terms: four constants where the parametric law has five. It is more certain with few runs, as long
as alpha = beta is nearly true.

Shapes: K thetas, R runs, S starts.
"""

import itertools
from collections.abc import Sequence
from functools import partial

import numpy as np

from trainrig.scaling.laws.law_forms import (
    FLOPS_PER_PARAMETER_AND_TOKEN,
    Array,
    Kaplan,
    OverTraining,
    Parametric,
)
from trainrig.scaling.laws.runs_table import RunsTable
from trainrig.scaling.regression.minimise import (
    CurveValue,
    Huber,
    LogSumExp,
    Loss,
    MinimiseSettings,
)
from trainrig.scaling.regression.regression import Fit, Regression, Vanishing, check_spread

EXPONENTS = (0.1, 0.2, 0.35, 0.6, 1.0)  # starting values of alpha and of beta
FLOORS = (0.2, 0.5, 0.8, 0.95)  # starting values of E, as shares of the least loss


def centre_logs(values: Array) -> tuple[Array, float]:
    """Return the logarithms of `values` less their mean, and the mean."""
    logs = np.log(values)
    middle = float(logs.mean())
    return logs - middle, middle


def fit_parametric(
    runs: RunsTable,
    loss: Loss | None = None,
    exponents: Sequence[float] = EXPONENTS,
    floors: Sequence[float] = FLOORS,
    search: MinimiseSettings | None = None,
) -> Fit[Parametric]:
    """Fit the parametric law to `runs`. Raises DataError if they do not determine its constants.

    `loss` applies to the residuals of log loss, by default Huber's. Its sum over runs is minimised,
    not the mean. The coordinates are ln A and ln B at the middle of the runs, ln E, alpha and beta:
    at the origin, alpha and ln A would be almost perfectly correlated. The minimum is the same.

    The search starts at each triple of alpha, beta and E from `exponents` and `floors`, with the A
    and B that then fit best by least squares. So the starts suit runs of any size.
    """
    check = partial(check_spread, form="Parametric", constants=5)
    check(runs)
    log_n, middle_n = centre_logs(runs.parameters)
    log_d, middle_d = centre_logs(runs.tokens)

    def forms(theta: Array) -> Parametric:
        a, b, e, alpha, beta = np.moveaxis(theta, -1, 0)
        with np.errstate(over="ignore"):  # an unbounded exponent makes its factor infinite
            return Parametric.model_construct(
                E=np.exp(e),
                A=np.exp(a + alpha * middle_n),
                B=np.exp(b + beta * middle_d),
                alpha=alpha,
                beta=beta,
            )

    starts = []
    for alpha, beta, floor in itertools.product(exponents, exponents, floors):
        terms = np.stack([np.exp(-alpha * log_n), np.exp(-beta * log_d)], axis=1)
        starts.append([*fit_above_floor(terms, runs.loss, floor), alpha, beta])
    return Regression(
        runs=runs,
        curve=LogSumExp.of([1, 0, 0, -log_n, 0], [0, 1, 0, 0, -log_d], [0, 0, 1, 0, 0]),
        starts=np.array(starts),
        loss=loss or Huber(),
        forms=forms,
        check=check,
        search=search or MinimiseSettings(),
        vanishing=Vanishing("E", 2),
    ).fit()


def fit_above_floor(terms: Array, loss: Array, floor: float) -> tuple[float, float, float]:
    """Return the logs of the two factors of `terms` [R, 2] that fit the loss above E, and of E.

    E is `floor` times the least loss. Each factor is at least a hundredth of the mean loss above E,
    so both are positive.
    """
    above = loss - floor * loss.min()
    first, second = np.maximum(np.linalg.lstsq(terms, above)[0], above.mean() / 100)
    return float(np.log(first)), float(np.log(second)), float(np.log(floor * loss.min()))


LARGEST_LOG = 690.0  # logarithm of the largest n_c of a law: near the largest float
KAPLAN_EXPONENTS = (0.03, 0.06, 0.1, 0.2, 0.4)  # starting values of alpha_n and alpha_d


def fit_kaplan_form(runs: RunsTable, loss: Loss | None = None) -> Fit[Kaplan]:
    """Fit Kaplan's law to `runs`. Raises DataError if they do not determine its constants.

    The search starts at each pair of KAPLAN_EXPONENTS, with the n_c and d_c that fit best for them.
    """
    check = partial(check_spread, form="Kaplan", constants=4)
    check(runs)
    log_n, middle_n = centre_logs(runs.parameters)
    log_d, middle_d = centre_logs(runs.tokens)

    def forms(theta: Array) -> Kaplan:
        s, t, power, alpha_d = np.moveaxis(theta, -1, 0)
        # Runs that hardly show an effect of N bound neither n_c nor the power, but n_c to that
        # power. So the power is at least what keeps n_c finite.
        least = np.abs(s) / (LARGEST_LOG - middle_n)
        power = np.where(power > 0, np.maximum(power, least), power)
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            n_c = np.exp(s / power + middle_n)
            d_c = np.exp(t + middle_d)
        return Kaplan.model_construct(n_c=n_c, d_c=d_c, alpha_n=power * alpha_d, alpha_d=alpha_d)

    starts = _build_kaplan_starts(log_n, log_d, runs.loss)
    curve = _KaplanCurve(log_n, log_d)
    return Regression(runs, curve, starts, loss or Huber(), forms, check).fit()


class _KaplanCurve:
    """Curve f = alpha_d log(e^(s - p log N) + e^(t - log D)) at theta = (s, t, p, alpha_d).

    Here p is alpha_n / alpha_d. log N and log D are relative to their means over the runs.
    """

    def __init__(self, log_n: Array, log_d: Array) -> None:
        # The fourth coordinate of the inner sum is fixed at 1 and holds the terms without a
        # constant.
        self._inner = LogSumExp.of([1, 0, -log_n, 0], [0, 1, 0, -log_d])

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


def _build_kaplan_starts(log_n: Array, log_d: Array, loss: Array) -> Array:
    """Return the starts [S, 4], one for each pair of exponents.

    For given exponents, L^(1/alpha_d) is linear in n_c^p and d_c. Both are kept positive.
    """
    starts = []
    for alpha_n, alpha_d in itertools.product(KAPLAN_EXPONENTS, repeat=2):
        power = alpha_n / alpha_d
        whole = (loss / loss.min()) ** (1 / alpha_d)
        terms = np.stack([np.exp(-power * log_n), np.exp(-log_d)], axis=1) / whole[:, None]
        best = np.linalg.lstsq(terms, np.ones_like(loss))[0]
        s, t = np.log(np.maximum(best, 1e-2 / terms.mean(axis=0))) + np.log(loss.min()) / alpha_d
        starts.append([s, t, power, alpha_d])
    return np.array(starts)


# Starting values of eta, and of E as shares of the least loss.
OVERTRAINING_STARTS = tuple(
    itertools.product((0.05, 0.1, 0.2, 0.3, 0.5), (0.2, 0.4, 0.6, 0.8, 0.95))
)


def fit_overtraining(runs: RunsTable, loss: Loss | None = None) -> Fit[OverTraining]:
    """Fit the over-training law to `runs`. Raises DataError if they do not determine it.

    The search starts at each pair of OVERTRAINING_STARTS, with the a and b that then fit best by
    least squares.
    """
    check = partial(check_spread, form="OverTraining", constants=4)
    check(runs)
    flops = FLOPS_PER_PARAMETER_AND_TOKEN * runs.parameters * runs.tokens
    multiplier = runs.tokens / runs.parameters
    # M^eta C^-eta and M^-eta C^-eta, each centred on its own mean, which makes the coordinates less
    # correlated.
    rising, middle_rising = centre_logs(multiplier / flops)
    falling = -np.log(multiplier * flops)
    middle_falling = float(falling.mean())
    falling = falling - middle_falling

    def forms(theta: Array) -> OverTraining:
        a, b, e, eta = np.moveaxis(theta, -1, 0)
        with np.errstate(over="ignore"):  # an unbounded exponent makes its factor infinite
            a = np.exp(a - eta * middle_rising)
            b = np.exp(b - eta * middle_falling)
        return OverTraining.model_construct(E=np.exp(e), a=a, b=b, eta=eta)

    starts = []
    for eta, floor in OVERTRAINING_STARTS:
        terms = np.exp(eta * np.stack([rising, falling], axis=1))
        starts.append([*fit_above_floor(terms, runs.loss, floor), eta])
    return Regression(
        runs=runs,
        curve=LogSumExp.of([1, 0, 0, rising], [0, 1, 0, falling], [0, 0, 1, 0]),
        starts=np.array(starts),
        loss=loss or Huber(),
        forms=forms,
        check=check,
        vanishing=Vanishing("E", 2),
    ).fit()
