"""Evaluation of a law as it is used: fitted to small runs, tested on the largest ones.

The largest runs are held out and the form is fitted to the rest. Each held-out run is compared with
its prediction and with the prediction's interval. The interval comes from the predictions of the
bootstrap draws, each with noise drawn from the fit's residuals.

Shapes: R rows, H held-out rows, K draws.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from trainrig.config import Field, Settings
from trainrig.errors import DataError
from trainrig.scaling.laws.fit_progress import ReportProgress, ignore_progress
from trainrig.scaling.laws.forms import Array, Form
from trainrig.scaling.laws.law import HeldOutErrors, HeldOutRow, compute_percentiles, refuse_draws
from trainrig.scaling.laws.regression.bootstrap import Bootstrap, FormDraws, bootstrap_form
from trainrig.scaling.laws.regression.regression import FINEST, Fit
from trainrig.scaling.laws.runs_table import Floats, RunsTable

Mask = NDArray[np.bool_]
FitForm = Callable[[RunsTable], Fit[Any]]
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
    rule: str


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
    return HeldOutSplit(runs.select(~held), runs.select(held), rule)


def judge(
    halves: HeldOutSplit, fit: Fit[Any], rules: Bootstrap, report: ReportProgress = ignore_progress
) -> HeldOutErrors:
    """Compare the held-out runs with the predictions of `fit`, which was fitted to the rest."""
    largest = halves.largest
    predicted = predict(fit.form, largest)
    draws = bootstrap_form(fit, rules, report)
    refused = refuse_draws(len(draws.draws.good), draws.draws.failed)
    drawn = None if refused else draw_predictions(draws, largest, rules.seed)
    rows = tuple(
        HeldOutRow(
            name=str(largest.name[i]),
            parameters=float(largest.parameters[i]),
            tokens=float(largest.tokens[i]),
            loss=float(largest.loss[i]),
            predicted=float(predicted[i]),
            interval=None if drawn is None else compute_percentiles(drawn[:, i], rules.level),
        )
        for i in range(len(largest))
    )
    errors = np.abs(predicted / largest.loss - 1)
    return HeldOutErrors(
        rule=halves.rule,
        rows=rows,
        mean_absolute_error=float(errors.mean()),
        worst_absolute_error=float(errors.max()),
        law_of_the_rest=fit.form,
        no_interval=refused,
    )


def predict(form: Form, runs: RunsTable) -> Array:
    """Predict the loss [R] of each run by `form`, with repeated tokens where they are known."""
    unique = np.where(np.isnan(runs.unique_tokens), runs.tokens, runs.unique_tokens)
    return form.compute_loss(runs.parameters, runs.tokens, unique)


def draw_predictions(draws: FormDraws[Any], runs: RunsTable, seed: int) -> Array:
    """Predict `runs` by each draw [K, H], with noise drawn from the fit's residuals.

    Residuals are smaller than the noise because the constants adapt to it, so they are scaled up by
    the lost degrees of freedom.
    """
    residuals = draws.fit.residuals
    freed = len(residuals) / max(len(residuals) - len(draws.fit.theta), 1)
    rng = np.random.default_rng(seed)
    clean = np.stack([predict(form, runs) for form in draws.forms])
    return np.asarray(clean * np.exp(rng.choice(residuals * np.sqrt(freed), clean.shape)))


def compute_criterion(fit: Fit[Any]) -> float:
    """Compute Akaike's criterion with Laplace noise: 2 R ln(mean |residual|) + 2 x constants.

    Residuals are of log loss. Laplace noise is assumed because its likelihood is close to Huber's
    loss.
    """
    constants = len(fit.form.constants)
    size = max(float(np.abs(fit.residuals).mean()), FINEST)
    return float(2 * len(fit.residuals) * np.log(size) + 2 * constants)
