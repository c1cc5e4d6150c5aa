"""The quickstart's own scaling law: fitted to its sweep, and a larger run planned by it."""

from typing import Any

from trainrig.quickstart import story
from trainrig.quickstart.folders import Folders
from trainrig.scaling.fit import Fitted, LawFit, fit_law, write_fit
from trainrig.scaling.held_out import predict
from trainrig.scaling.law import Estimate
from trainrig.scaling.plan_answer import RunWanted, answer
from trainrig.scaling.runs import Runs

TIMES = 10.0  # the compute of the sweep's largest run that a plan is made for


def write_law(at: Folders) -> Fitted:
    """Fit the law of the finished sweep of `at`, and put it beside the table."""
    fitted = fit_law(Runs.read(at.sweep), LawFit(), "quickstart", source=at.sweep)
    write_fit(at.sweep, fitted)
    return fitted


def scaling_of(at: Folders) -> story.Scaling:
    """The law of the sweep, what it says of the runs it is of, and a plan by it."""
    fitted = write_law(at)
    runs = fitted.runs
    flops = TIMES * float(runs.flops_6nd.max())
    given: dict[str, Any] = {"flops": flops, "device": "h100", "devices": 1}
    wanted = RunWanted(at.planned, at.tokens, at.planned.removesuffix(".toml"))
    plan, lines = answer(f"{at.sweep}/law.json", given, None, wanted)
    predicted = predict(fitted.law.form, runs)
    return story.Scaling(
        points=tuple(
            story.SweepPoint(
                parameters=int(runs.parameters[row]),
                tokens=int(runs.tokens[row]),
                loss=float(runs.loss[row]),
                predicted=float(predicted[row]),
            )
            for row in range(len(runs))
        ),
        constants=tuple(
            (name, f"{estimate.value:.4g}", _interval(estimate))
            for name, estimate in fitted.law.estimates.items()
        ),
        flops=flops,
        parameters=plan.size.parameters,
        tokens=plan.size.tokens,
        loss=plan.loss,
        plan=tuple(lines),
    )


def _interval(estimate: Estimate) -> str:
    found = estimate.profile or estimate.bootstrap
    return str(found) if found else "none"
