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
from functools import partial

import numpy as np

from trainrig.config import Field, Settings
from trainrig.scaling.laws import law_forms
from trainrig.scaling.laws.runs_table import RunsTable
from trainrig.scaling.regression import minimise
from trainrig.scaling.regression.regression import Fit, Regression, Vanishing, check_spread

Shares = tuple[law_forms.Positive, ...]


class ParametricFit(Settings):
    """Settings of fitting the parametric law. The sum over runs is minimised, not the mean.

    The search starts at each triple of alpha, beta and E from `exponents` and `floors`, with the A
    and B that then fit best by least squares. So the starts suit runs of any size.
    """

    loss: minimise.Loss = minimise.Huber()
    exponents: Shares = (0.1, 0.2, 0.35, 0.6, 1.0)  # starting values of alpha and of beta
    floors: Shares = (0.2, 0.5, 0.8, 0.95)  # starting values of E, as shares of the least loss
    search: minimise.MinimiseSettings = Field(minimise.MinimiseSettings())


def fit_parametric(
    runs: RunsTable, settings: ParametricFit | None = None
) -> Fit[law_forms.Parametric]:
    """Fit the parametric law to `runs`. Raises DataError if they do not determine its constants."""
    return build_regression(runs, settings or ParametricFit()).fit()


def build_regression(runs: RunsTable, settings: ParametricFit) -> Regression[law_forms.Parametric]:
    """Build the regression of log loss on the five constants.

    Its coordinates are ln A and ln B at the middle of the runs, ln E, alpha and beta. At the
    origin, alpha and ln A would be almost perfectly correlated. The minimum is the same.
    """
    check = partial(check_spread, form="Parametric", constants=5)
    check(runs)
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

    def forms(theta: law_forms.Array) -> law_forms.Parametric:
        a, b, e, alpha, beta = np.moveaxis(theta, -1, 0)
        with np.errstate(over="ignore"):  # an unbounded exponent makes its factor infinite
            return law_forms.Parametric.model_construct(
                E=np.exp(e),
                A=np.exp(a + alpha * middle[0]),
                B=np.exp(b + beta * middle[1]),
                alpha=alpha,
                beta=beta,
            )

    starts = _build_starts(log_n, log_d, runs.loss, settings)
    return Regression(
        runs=runs,
        curve=minimise.LogSumExp(designs),
        starts=starts,
        loss=settings.loss,
        forms=forms,
        search=settings.search,
        check=check,
        vanishing=Vanishing("E", 2),
    )


def _build_starts(
    log_n: law_forms.Array, log_d: law_forms.Array, loss: law_forms.Array, settings: ParametricFit
) -> law_forms.Array:
    """Return the starts [S, 5], one for each triple of alpha, beta and E."""
    starts = []
    for alpha, beta, floor in itertools.product(
        settings.exponents, settings.exponents, settings.floors
    ):
        terms = np.stack([np.exp(-alpha * log_n), np.exp(-beta * log_d)], axis=1)
        starts.append([*fit_above_floor(terms, loss, floor), alpha, beta])
    return np.array(starts)


def fit_above_floor(
    terms: law_forms.Array, loss: law_forms.Array, floor: float
) -> tuple[float, float, float]:
    """Return the logs of the two factors of `terms` [R, 2] that fit the loss above E, and of E.

    E is `floor` times the least loss. Each factor is at least a hundredth of the mean loss above E,
    so both are positive.
    """
    above = loss - floor * loss.min()
    first, second = np.maximum(np.linalg.lstsq(terms, above)[0], above.mean() / 100)
    return float(np.log(first)), float(np.log(second)), float(np.log(floor * loss.min()))


LARGEST_LOG = 690.0  # logarithm of the largest n_c of a law: near the largest float


def fit_power_above_floor(
    term: law_forms.Array, loss: law_forms.Array, floor: float
) -> tuple[float, float]:
    """Return the logs of the factor of `term` [R] that fits the loss above E, and of E.

    E is `floor` times the least loss. The factor is positive.
    """
    above = loss - floor * loss.min()
    factor = max(float(term @ above / (term @ term)), float(above.mean()) / 100)
    return float(np.log(factor)), float(np.log(floor * loss.min()))


class KaplanFit(Settings):
    """Settings of fitting Kaplan's law.

    The search starts at each pair of exponents, with the n_c and d_c that fit best for them.
    """

    loss: minimise.Loss = minimise.Huber()
    # Starting values of alpha_n and alpha_d.
    exponents: tuple[law_forms.Positive, ...] = (0.03, 0.06, 0.1, 0.2, 0.4)
    search: minimise.MinimiseSettings = Field(minimise.MinimiseSettings())


def fit_kaplan_form(runs: RunsTable, settings: KaplanFit | None = None) -> Fit[law_forms.Kaplan]:
    """Fit Kaplan's law to `runs`. Raises DataError if they do not determine its constants."""
    rules = settings or KaplanFit()
    check = partial(check_spread, form="Kaplan", constants=4)
    check(runs)
    log_n = np.log(runs.parameters)
    log_d = np.log(runs.tokens)
    middle = float(log_n.mean()), float(log_d.mean())
    log_n = log_n - middle[0]
    log_d = log_d - middle[1]

    def forms(theta: law_forms.Array) -> law_forms.Kaplan:
        s, t, power, alpha_d = np.moveaxis(theta, -1, 0)
        # Runs that hardly show an effect of N bound neither n_c nor the power, but n_c to that
        # power. So the power is at least what keeps n_c finite.
        least = np.abs(s) / (LARGEST_LOG - middle[0])
        power = np.where(power > 0, np.maximum(power, least), power)
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            n_c = np.exp(s / power + middle[0])
            d_c = np.exp(t + middle[1])
        return law_forms.Kaplan.model_construct(
            n_c=n_c, d_c=d_c, alpha_n=power * alpha_d, alpha_d=alpha_d
        )

    starts = _build_kaplan_starts(log_n, log_d, runs.loss, rules.exponents)
    curve = _KaplanCurve(log_n, log_d)
    return Regression(runs, curve, starts, rules.loss, forms, rules.search, check).fit()


class _KaplanCurve:
    """Curve f = alpha_d log(e^(s - p log N) + e^(t - log D)) at theta = (s, t, p, alpha_d).

    Here p is alpha_n / alpha_d. log N and log D are relative to their means over the runs.
    """

    def __init__(self, log_n: law_forms.Array, log_d: law_forms.Array) -> None:
        one = np.ones_like(log_n)
        zero = np.zeros_like(log_n)
        # The fourth coordinate of the inner sum is fixed at 1 and holds the terms without a
        # constant.
        first = [one, zero, -log_n, zero]
        second = [zero, one, zero, -log_d]
        self._inner = minimise.LogSumExp(np.array([first, second]).transpose(0, 2, 1))

    def __call__(self, theta: law_forms.Array) -> minimise.CurveValue:
        alpha_d = theta[:, 3, None]
        inner = self._inner(np.concatenate([theta[:, :3], np.ones_like(alpha_d)], axis=1))
        slope = np.concatenate(
            [alpha_d[..., None] * inner.slope[..., :3], inner.value[..., None]], axis=-1
        )

        def bend(coefficients: law_forms.Array) -> law_forms.Array:
            bent = alpha_d[..., None] * inner.bend(coefficients)
            cross = (coefficients[:, None] @ inner.slope)[:, 0]
            bent[:, 3, :] = bent[:, :, 3] = cross
            bent[:, 3, 3] = 0
            return bent

        return minimise.CurveValue(alpha_d * inner.value, slope, bend)


def _build_kaplan_starts(
    log_n: law_forms.Array,
    log_d: law_forms.Array,
    loss: law_forms.Array,
    exponents: tuple[float, ...],
) -> law_forms.Array:
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


class OverTrainingFit(Settings):
    """Settings of fitting the over-training law.

    The search starts at each pair of eta and E from `exponents` and `floors`, with the a and b that
    then fit best by least squares.
    """

    loss: minimise.Loss = minimise.Huber()
    exponents: Shares = (0.05, 0.1, 0.2, 0.3, 0.5)  # starting values of eta
    floors: Shares = (0.2, 0.4, 0.6, 0.8, 0.95)  # starting values of E, as shares of the least loss
    search: minimise.MinimiseSettings = Field(minimise.MinimiseSettings())


def fit_overtraining(
    runs: RunsTable, settings: OverTrainingFit | None = None
) -> Fit[law_forms.OverTraining]:
    """Fit the over-training law to `runs`. Raises DataError if they do not determine it."""
    settings = settings or OverTrainingFit()
    check = partial(check_spread, form="OverTraining", constants=4)
    check(runs)
    flops = law_forms.FLOPS_PER_PARAMETER_AND_TOKEN * runs.parameters * runs.tokens
    multiplier = runs.tokens / runs.parameters
    # M^eta C^-eta and M^-eta C^-eta, each centred on its own mean, which makes the coordinates less
    # correlated.
    rising = np.log(multiplier / flops)
    falling = -np.log(multiplier * flops)
    middle = float(rising.mean()), float(falling.mean())
    rising = rising - middle[0]
    falling = falling - middle[1]
    one = np.ones_like(rising)
    zero = np.zeros_like(rising)
    designs = np.array(
        [[one, zero, zero, rising], [zero, one, zero, falling], [zero, zero, one, zero]]
    ).transpose(0, 2, 1)

    def forms(theta: law_forms.Array) -> law_forms.OverTraining:
        a, b, e, eta = np.moveaxis(theta, -1, 0)
        with np.errstate(over="ignore"):  # an unbounded exponent makes its factor infinite
            return law_forms.OverTraining.model_construct(
                E=np.exp(e), a=np.exp(a - eta * middle[0]), b=np.exp(b - eta * middle[1]), eta=eta
            )

    starts = []
    for eta, floor in itertools.product(settings.exponents, settings.floors):
        terms = np.exp(eta * np.stack([rising, falling], axis=1))
        starts.append([*fit_above_floor(terms, runs.loss, floor), eta])
    return Regression(
        runs=runs,
        curve=minimise.LogSumExp(designs),
        starts=np.array(starts),
        loss=settings.loss,
        forms=forms,
        search=settings.search,
        check=check,
        vanishing=Vanishing("E", 2),
    ).fit()
