"""Designs of equal cost compared: how well a sweep by each predicts a run of 120 times its cost.

Laws are drawn around published ones, and their losses have noise, half of which the runs of a trial
share. In half of the sweeps the losses drift away from the law at small compute, as a random walk.
The default fit predicts the target. `pytest -m bench` writes the JSON file below, from which
docs/evidence/scaling-laws.md has its table.
"""

import datetime
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainrig.scaling.fit.law_fit import LawFit, fit_law
from trainrig.scaling.laws.law_forms import Parametric
from trainrig.scaling.laws.runs_table import RunsTable
from trainrig.scaling.regression.bootstrap import Bootstrap
from trainrig.scaling.regression.optimal_design import SHARED_NOISE, CandidateTrial
from trainrig.scaling.sweep.budget_design import BudgetDesign, design_trials, find_prior_laws
from trainrig.scaling.sweep.sweep_run_file import OptimalDesign

RESULTS = Path(__file__).parent / "results/optimal-designs.json"
TARGET = (1e9, 2e10)
BUDGET = 1e18
NOISE = 0.003  # standard deviation of log loss
DRIFT = 0.005  # standard deviation of the drift of log loss over a factor e of compute
SWEEPS = 6
DECAY = 0.2  # share of a shorter run that is trained beside its trial's longest run
SIZES = np.array([1.0, 2.0, 4.0, 8.0])


def build_trial(parameters: float, tokens: Sequence[float]) -> CandidateTrial:
    *shorter, longest = sorted(tokens)
    cost = 6 * parameters * (longest + DECAY * math.fsum(shorter))
    return CandidateTrial(parameters, tuple(sorted(tokens)), cost)


def design_optimally(budget: float = BUDGET) -> BudgetDesign:
    design = OptimalDesign(budgets=(f"{budget}FLOPs",), predict=TARGET, noise=NOISE)
    return design_trials(
        design, [budget], 0, 10.0, lambda size, tokens: (tokens, build_trial(size, tokens))
    )


def list_isoflop(least: float) -> list[CandidateTrial]:
    """Return four sizes at four budgets that double, around D/N = 20."""
    budgets = 120 * (least * math.sqrt(8)) ** 2 * np.array([0.25, 0.5, 1, 2])
    return [build_trial(size, (budgets / 6 / size).tolist()) for size in least * SIZES]


def list_grid(least: float) -> list[CandidateTrial]:
    """Return four sizes at four token counts, up to 160 tokens per parameter of the smallest."""
    tokens = least * 160 * np.array([0.125, 0.25, 0.5, 1])
    return [build_trial(size, tokens.tolist()) for size in least * SIZES]


def list_rays(least: float) -> list[CandidateTrial]:
    """Return four sizes at the default ratios D/N."""
    return [
        build_trial(size, [size * ratio for ratio in (5, 10, 20, 40, 80)]) for size in least * SIZES
    ]


def spend_budget(make: Callable[[float], list[CandidateTrial]]) -> list[CandidateTrial]:
    """Return the design of `make` whose cost is BUDGET. The cost grows as the squared size."""
    cost = sum(trial.cost for trial in make(1e6))
    return make(1e6 * math.sqrt(BUDGET / cost))


def draw_law(rng: np.random.Generator) -> Parametric:
    """Draw a law: a published one with other exponents and other shares of the loss at TARGET."""
    laws = find_prior_laws(None)
    law = laws[rng.integers(len(laws))]
    alpha, beta = np.array([law.alpha, law.beta]) + 0.05 * rng.normal(size=2)
    terms = np.array([law.E, law.A * TARGET[0] ** -law.alpha, law.B * TARGET[1] ** -law.beta])
    floor, of_size, of_tokens = terms * np.exp(np.array([0.2, 0.4, 0.4]) * rng.normal(size=3))
    return Parametric(
        E=floor,
        A=of_size * TARGET[0] ** alpha,
        B=of_tokens * TARGET[1] ** beta,
        alpha=alpha,
        beta=beta,
    )


def simulate_runs(trials: Sequence[CandidateTrial], seed: int, drift: float) -> RunsTable:
    """Return the losses of all runs of `trials`, by the law, the drift and the noise of `seed`."""
    law = draw_law(np.random.default_rng([seed, 0]))
    walk = np.cumsum(drift * np.random.default_rng([seed, 1]).normal(size=40))
    rng = np.random.default_rng([seed, 2])
    shared = rng.normal(size=len(trials))
    rows = [
        (trial.parameters, tokens, place)
        for place, trial in enumerate(trials)
        for tokens in trial.tokens
    ]
    parameters, tokens, place = (np.array(column) for column in zip(*rows, strict=True))
    noise = math.sqrt(SHARED_NOISE) * shared[place]
    noise += math.sqrt(1 - SHARED_NOISE) * rng.normal(size=len(rows))
    less = np.log(TARGET[0] * TARGET[1] / (parameters * tokens))
    off = np.interp(less, np.arange(41), np.concatenate([[0.0], walk]))
    return RunsTable.of(
        parameters=parameters,
        tokens=tokens,
        loss=law.compute_loss(parameters, tokens) * np.exp(NOISE * noise + off),
        trial=[f"t{number:03}" for number in place],
    )


def predict_target(trials: Sequence[CandidateTrial], seed: int, drift: float) -> dict[str, float]:
    """Return the relative error and width of the prediction, and whether it holds the truth.

    A prediction without an interval counts as infinitely wide.
    """
    runs = simulate_runs(trials, seed, drift)
    law = fit_law(runs, LawFit(bootstrap=Bootstrap(draws=100)), "simulated").law

    def quantity(form: Any) -> float:
        return float(form.compute_loss(*TARGET))

    truth = quantity(draw_law(np.random.default_rng([seed, 0])))
    error = law.combine(quantity) / truth - 1
    interval = law.predict_interval(quantity, *TARGET)
    if interval is None or interval.high is None:
        return {"error": error, "width": math.inf, "held": 0.0}
    width = (interval.high - (interval.low or 0.0)) / law.combine(quantity)
    return {"error": error, "width": width, "held": float(interval.contains(truth))}


def summarise(found: Sequence[dict[str, float]]) -> dict[str, Any]:
    """Return the root mean square error, the median width with its range, and how many held."""
    errors, widths = (np.array([one[key] for one in found]) for key in ("error", "width"))
    return {
        "error": round(float(np.sqrt(np.mean(errors**2))), 5),
        "width": round(float(np.median(widths)), 4),
        "widths": [
            round(float(end), 4) if end < math.inf else None
            for end in (np.min(widths), np.max(widths))
        ],
        "held": sum(one["held"] for one in found),
    }


@pytest.mark.bench
@pytest.mark.timeout(3600)
def test_designs_of_equal_cost_are_compared() -> None:
    optimal = design_optimally()
    designs = {
        "OptimalDesign": [trial.candidate for trial in optimal.trials],
        "Rays": spend_budget(list_rays),
        "IsoFLOP": spend_budget(list_isoflop),
        "Grid": spend_budget(list_grid),
    }
    costs = [sum(trial.cost for trial in trials) for trials in designs.values()]
    assert costs == pytest.approx([BUDGET] * len(designs), rel=0.05)
    drifts = {"exact law": 0.0, "drifting": DRIFT}
    found: dict[str, dict[str, list[dict[str, float]]]] = {}
    for seed in range(SWEEPS):
        for kind, drift in drifts.items():
            for name, trials in designs.items():
                one = predict_target(trials, seed, drift)
                found.setdefault(kind, {}).setdefault(name, []).append(one)
                print(seed, kind, name, one, flush=True)
    whole = {
        "date": datetime.date.today().isoformat(),
        "sweeps": SWEEPS,
        "expected_width": round(optimal.stages[-1].expected_width, 4),
        "designs": {
            name: {
                "trials": len(trials),
                "runs": sum(len(trial.tokens) for trial in trials),
                "cost": round(sum(trial.cost for trial in trials) / BUDGET, 3),
            }
            for name, trials in designs.items()
        },
        "found": {
            kind: {name: summarise(ones) for name, ones in by_name.items()}
            for kind, by_name in found.items()
        },
    }
    RESULTS.write_text(json.dumps(whole, indent=1) + "\n")
