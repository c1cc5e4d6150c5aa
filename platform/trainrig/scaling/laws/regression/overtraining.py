"""Fit of the over-training law: one exponent for both terms, with factors that depend on D/N.

The law of Gadre et al. 2024 (arXiv:2403.08540, section 3) has four constants where the parametric
law has five. It is more certain with few runs, as long as alpha = beta is nearly true.

Shapes: R runs, S starts.
"""

import itertools

import numpy as np

from trainrig.config import Field, Settings
from trainrig.scaling.laws.forms import FLOPS_PER_PARAMETER_AND_TOKEN, Array, OverTraining
from trainrig.scaling.laws.regression.identifiability import check_spread
from trainrig.scaling.laws.regression.minimise import Huber, LogSumExp, Loss, MinimiseSettings
from trainrig.scaling.laws.regression.parametric import Shares, fit_above_floor
from trainrig.scaling.laws.regression.regression import Fit, Regression
from trainrig.scaling.laws.runs_table import RunsTable


class OverTrainingFit(Settings):
    """Settings of fitting the over-training law.

    The search starts at each pair of eta and E from `exponents` and `floors`, with the a and b that
    then fit best by least squares.
    """

    loss: Loss = Huber()
    exponents: Shares = (0.05, 0.1, 0.2, 0.3, 0.5)  # starting values of eta
    floors: Shares = (0.2, 0.4, 0.6, 0.8, 0.95)  # starting values of E, as shares of the least loss
    search: MinimiseSettings = Field(MinimiseSettings())


def fit_overtraining(runs: RunsTable, settings: OverTrainingFit | None = None) -> Fit[OverTraining]:
    """Fit the over-training law to `runs`. Raises DataError if they do not determine it."""
    settings = settings or OverTrainingFit()
    check_spread(runs, "OverTraining", constants=4)
    flops = FLOPS_PER_PARAMETER_AND_TOKEN * runs.parameters * runs.tokens
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

    def forms(theta: Array) -> OverTraining:
        a, b, e, eta = np.moveaxis(theta, -1, 0)
        return OverTraining.model_construct(
            E=np.exp(e), a=np.exp(a - eta * middle[0]), b=np.exp(b - eta * middle[1]), eta=eta
        )

    starts = []
    for eta, floor in itertools.product(settings.exponents, settings.floors):
        terms = np.exp(eta * np.stack([rising, falling], axis=1))
        starts.append([*fit_above_floor(terms, runs.loss, floor), eta])
    return Regression(
        runs, LogSumExp(designs), np.array(starts), settings.loss, forms, settings.search
    ).fit()
