"""Fit of runs on one ray, which all have the same ratio of tokens to parameters.

Such runs show the loss as a function of compute, L(C) = E + K C^-eta, where C = 6ND. They do not
show which part of K C^-eta falls with the parameters and which with the tokens. The law of Gadre et
al. (arXiv:2403.08540) divides K into a M^eta + b M^-eta for M = D/N, and is best at M = (b/a)^(1/(2
eta)). Here that best ratio is taken from published laws. So the loss on the ray is measured, and
the loss off the ray is assumed.
"""

import numpy as np

from trainrig.errors import DataError
from trainrig.scaling.laws.law_forms import LEVELS, Array, OverTraining
from trainrig.scaling.laws.runs_table import RunsTable
from trainrig.scaling.regression.form_fits import OVERTRAINING_STARTS, centre_logs
from trainrig.scaling.regression.minimise import LogSumExp, Loss
from trainrig.scaling.regression.regression import (
    LEAST_FACTOR,
    Fit,
    Regression,
    Vanishing,
    check_numbers,
    find_levels,
)

# Tokens per parameter that Hoffmann et al. found best by approaches 1 and 2 (arXiv:2203.15556,
# table 3).
ASSUMED_RATIO = 20.0
LEAST_FALL = 1e-3  # least fall of the log loss from the least to the most compute
LEAST_RUNS = 4  # one more than the constants


def describe_assumption(runs: RunsTable) -> str:
    """Return what a law of `runs` on one ray assumes."""
    ratio = float(np.median(runs.tokens / runs.parameters))
    return (
        f"all runs have D/N = {ratio:.3g}, so they show the loss as a function of compute alone; "
        f"that {ASSUMED_RATIO:g} tokens per parameter are best is assumed, as Hoffmann et al. "
        "found, not measured"
    )


def check_ray(runs: RunsTable) -> None:
    """Raise DataError unless `runs` lie on one ray D/N, at enough different computes."""
    check_numbers(runs)
    ratios = runs.tokens / runs.parameters
    if ratios.max() / ratios.min() >= LEAST_FACTOR:
        raise DataError("the runs do not lie on one ray D/N")
    levels = len(find_levels(runs.flops_6nd))
    if len(runs) < LEAST_RUNS or levels < LEVELS:
        raise DataError(
            f"{len(runs)} runs at {levels} computes: a law along one ray needs {LEAST_RUNS} runs "
            f"at {LEVELS} computes"
        )


def fit_ray(runs: RunsTable, loss: Loss) -> Fit[OverTraining]:
    """Fit the over-training law to `runs` on one ray, with the best ratio assumed.

    Raises DataError if they do not lie on one, or do not determine the loss along it.
    """
    check_ray(runs)
    log_flops, middle = centre_logs(runs.flops_6nd)
    log_ratio = float(np.log(runs.tokens / runs.parameters).mean())

    def forms(theta: Array) -> OverTraining:
        k, e, eta = np.moveaxis(theta, -1, 0)
        with np.errstate(over="ignore", invalid="ignore"):  # eta is unbounded
            whole = np.exp(k + eta * middle)
            best = np.exp(2 * eta * np.log(ASSUMED_RATIO))
            a = whole / (np.exp(eta * log_ratio) + best * np.exp(-eta * log_ratio))
            return OverTraining.model_construct(E=np.exp(e), a=a, b=a * best, eta=eta)

    starts = [
        [*_fit_power_above_floor(np.exp(-eta * log_flops), runs.loss, floor), eta]
        for eta, floor in OVERTRAINING_STARTS
    ]
    fit = Regression(
        runs=runs,
        curve=LogSumExp.of([1, 0, -log_flops], [0, 1, 0]),
        starts=np.array(starts),
        loss=loss,
        forms=forms,
        check=check_ray,
        vanishing=Vanishing("E", 1),
    ).fit()
    if np.ptp(fit.regression.curve(fit.theta[None]).value) < LEAST_FALL:
        raise DataError("the losses do not fall with compute")
    return fit


def _fit_power_above_floor(term: Array, loss: Array, floor: float) -> tuple[float, float]:
    """Return the logs of the factor of `term` [R] that fits the loss above E, and of E.

    E is `floor` times the least loss. The factor is positive.
    """
    above = loss - floor * loss.min()
    factor = max(float(term @ above / (term @ term)), float(above.mean()) / 100)
    return float(np.log(factor)), float(np.log(floor * loss.min()))
