"""The quickstart's own scaling law: fitted to its sweep, and a larger run planned by it."""

from typing import Any

import numpy as np

from trainrig import storage
from trainrig.errors import InputError
from trainrig.quickstart.folders import Folders
from trainrig.quickstart.report import results
from trainrig.scaling.laws.fit import LAW_FILE, Fitted, LawFit, fit_law, write_fit
from trainrig.scaling.laws.law import IntervalEstimate
from trainrig.scaling.laws.read_table import read_table
from trainrig.scaling.laws.regression.held_out import predict
from trainrig.scaling.laws.runs_table import Floats, RunsTable
from trainrig.scaling.plan.plan import ScalingPlan
from trainrig.scaling.plan.plan_verb import RunWanted, answer

NAME = "quickstart"
TIMES = 10.0  # the compute of the sweep's largest run that a plan is made for
LENGTH = 256  # tokens of its sequences, as of the quickstart's model


def fit_scaling(at: Folders) -> results.Scaling:
    """The law of the finished sweep of `at`, put beside its table, and a plan by it.

    So few runs need not make a law: the reason is then told in its place.
    """
    runs = read_table(at.sweep)
    try:
        fitted = _fit_law(runs, at.sweep)
        plan, lines = _make_plan(at, fitted)
    except (
        InputError
    ) as error:  # nor need what they make be of use: its best model may be too small
        points = _build_points(runs, np.full(len(runs), np.nan))
        return results.Scaling(points=points, problem=str(error))
    return results.Scaling(
        points=_build_points(fitted.runs, predict(fitted.law.form, fitted.runs)),
        constants=tuple(
            (name, f"{estimate.value:.4g}", _format_interval(estimate))
            for name, estimate in fitted.law.estimates.items()
        ),
        plan=results.Planned(plan.asked, plan.size.parameters, plan.size.tokens, plan.loss, lines),
    )


def _fit_law(runs: RunsTable, source: str) -> Fitted:
    """The law, judged on runs kept back if enough are left without them."""
    fitted = fit_law(runs, LawFit(), NAME, source)
    write_fit(source, fitted)
    return fitted


def _make_plan(at: Folders, fitted: Fitted) -> tuple[ScalingPlan, tuple[str, ...]]:
    """A plan for TIMES the compute of the largest run, its run file, and the lines that tell it."""
    flops = TIMES * float(fitted.runs.flops_6nd.max())
    wanted = RunWanted(at.planned, at.tokens, at.planned.removesuffix(".toml"))
    given: dict[str, Any] = {"flops": flops, "devices": 1, "sequence_length": LENGTH}
    plan, lines = answer(storage.join(at.sweep, LAW_FILE), given, None, wanted)
    return plan, tuple(lines)


def _build_points(runs: RunsTable, predicted: Floats) -> tuple[results.SweepPoint, ...]:
    return tuple(
        results.SweepPoint(
            parameters=int(runs.parameters[row]),
            tokens=int(runs.tokens[row]),
            loss=float(runs.loss[row]),
            predicted=float(predicted[row]),
        )
        for row in range(len(runs))
    )


def _format_interval(estimate: IntervalEstimate) -> str:
    found = estimate.profile or estimate.bootstrap
    return str(found) if found else "none"
