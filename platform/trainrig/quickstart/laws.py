"""The quickstart's own scaling law: fitted to its sweep, and a larger run planned by it."""

from typing import Any

import numpy as np

from trainrig import storage
from trainrig.errors import DataError, InputError
from trainrig.quickstart import story
from trainrig.quickstart.folders import Folders
from trainrig.scaling.fit import LAW_FILE, Fitted, LawFit, fit_law, write_fit
from trainrig.scaling.held_out import HoldOut, predict
from trainrig.scaling.law import Estimate
from trainrig.scaling.plan import Plan
from trainrig.scaling.plan_answer import RunWanted, answer
from trainrig.scaling.runs import Floats, Runs

NAME = "quickstart"
TIMES = 10.0  # the compute of the sweep's largest run that a plan is made for
LENGTH = 256  # tokens of its sequences, as of the quickstart's model


def scaling_of(at: Folders) -> story.Scaling:
    """The law of the finished sweep of `at`, put beside its table, and a plan by it.

    So few runs need not make a law: the reason is then told in its place.
    """
    runs = Runs.read(at.sweep)
    try:
        fitted = _fitted(runs, at.sweep)
        plan, lines = _planned(at, fitted)
    except (
        InputError
    ) as error:  # nor need what they make be of use: its best model may be too small
        points = _points(runs, np.full(len(runs), np.nan))
        return story.Scaling(points=points, problem=str(error))
    return story.Scaling(
        points=_points(fitted.runs, predict(fitted.law.form, fitted.runs)),
        constants=tuple(
            (name, f"{estimate.value:.4g}", _interval(estimate))
            for name, estimate in fitted.law.estimates.items()
        ),
        plan=story.Planned(plan.asked, plan.size.parameters, plan.size.tokens, plan.loss, lines),
    )


def _fitted(runs: Runs, source: str) -> Fitted:
    """The law, judged on runs kept back if enough are left without them."""
    try:
        fitted = fit_law(runs, LawFit(), NAME, source)
    except DataError:
        fitted = fit_law(runs, LawFit(hold_out=HoldOut(share=0.0)), NAME, source)
    write_fit(source, fitted)
    return fitted


def _planned(at: Folders, fitted: Fitted) -> tuple[Plan, tuple[str, ...]]:
    """A plan for TIMES the compute of the largest run, its run file, and the lines that tell it."""
    flops = TIMES * float(fitted.runs.flops_6nd.max())
    wanted = RunWanted(at.planned, at.tokens, at.planned.removesuffix(".toml"))
    given: dict[str, Any] = {"flops": flops, "devices": 1, "sequence_length": LENGTH}
    plan, lines = answer(storage.join(at.sweep, LAW_FILE), given, None, wanted)
    return plan, tuple(lines)


def _points(runs: Runs, predicted: Floats) -> tuple[story.SweepPoint, ...]:
    return tuple(
        story.SweepPoint(
            parameters=int(runs.parameters[row]),
            tokens=int(runs.tokens[row]),
            loss=float(runs.loss[row]),
            predicted=float(predicted[row]),
        )
        for row in range(len(runs))
    )


def _interval(estimate: Estimate) -> str:
    found = estimate.profile or estimate.bootstrap
    return str(found) if found else "none"
