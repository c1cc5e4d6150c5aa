"""The scaling law of the quickstart: its fit, and a larger plan."""

import numpy as np

from trainrig import storage
from trainrig.errors import InputError
from trainrig.quickstart.folders import Folders
from trainrig.quickstart.quickstart_results import Planned, Scaling, SweepPoint
from trainrig.scaling.fit.law_fit import LAW_FILE, Fitted, LawFit, fit_law, write_fit
from trainrig.scaling.laws.law import IntervalEstimate
from trainrig.scaling.laws.runs_files import read_table
from trainrig.scaling.laws.runs_table import Floats, RunsTable
from trainrig.scaling.plan.plan_run_file import PlanFile
from trainrig.scaling.plan.plan_schema import ScalingPlan
from trainrig.scaling.plan.plan_verb import plan_by_law
from trainrig.scaling.regression.foretelling import predict

NAME = "quickstart"
TIMES = 10.0  # Compute of the planned run, as a multiple of the sweep's largest run.
LENGTH = 256  # Tokens in a sequence of the planned run, as in the quickstart's model.


def fit_scaling(at: Folders) -> Scaling:
    """Fit the scaling law of the finished sweep of `at`, write it, and plan a run by it.

    So few runs may not suffice for a law or a plan; the result then has the reason instead.
    """
    runs = read_table(at.sweep)
    try:
        fitted = fit_law(runs, LawFit(), NAME, at.sweep)
        write_fit(at.sweep, fitted)
        plan, lines = _make_plan(at, fitted)
    except InputError as error:  # No law, or its best model is too small to plan.
        points = _build_points(runs, np.full(len(runs), np.nan))
        return Scaling(points=points, problem=str(error))
    return Scaling(
        points=_build_points(fitted.runs, predict(fitted.law.form, fitted.runs)),
        constants=tuple(
            (name, f"{estimate.value:.4g}", _format_interval(estimate))
            for name, estimate in fitted.law.estimates.items()
        ),
        plan=Planned(plan.asked, plan.size.parameters, plan.size.tokens, plan.loss, lines),
    )


def _make_plan(at: Folders, fitted: Fitted) -> tuple[ScalingPlan, tuple[str, ...]]:
    """Plan a run of TIMES the largest compute; return the plan and the lines that explain it.

    The run file of the plan is written as well.
    """
    request = PlanFile(
        law=storage.join(at.sweep, LAW_FILE),
        flops=TIMES * float(fitted.runs.flops_6nd.max()),
        extrapolate=True,
        devices=1,
        sequence_length=LENGTH,
        out=at.planned,
        tokens_folder=at.tokens,
        output=at.planned.removesuffix(".toml"),
    )
    plan, lines = plan_by_law(request, None)
    return plan, tuple(lines)


def _build_points(runs: RunsTable, predicted: Floats) -> tuple[SweepPoint, ...]:
    return tuple(
        SweepPoint(
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
