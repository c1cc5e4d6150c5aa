"""Coverage of predicted losses: simulated sweeps of a known law, fitted by default.

A prediction is for ten times the compute of the largest run, at 20 tokens per parameter.
"""

import datetime
import json
import os
from pathlib import Path

import numpy as np
import pytest

from trainrig.scaling.fit.law_fit import LawFit, fit_law
from trainrig.scaling.laws.law_forms import Kaplan, OverTraining, Parametric
from trainrig.scaling.laws.runs_table import RunsTable
from trainrig.scaling.plan.loss_prediction import predict_loss
from trainrig.scaling.regression.bootstrap import Bootstrap

RESULTS = Path(__file__).parents[1] / "results/predictions.json"
TRUTHS = {
    "Parametric": Parametric(E=1.82, A=478.0, B=2143.0, alpha=0.347, beta=0.367),
    "OverTraining": OverTraining(E=1.7, a=350.0, b=60.0, eta=0.125),
    "Kaplan": Kaplan(n_c=8.8e13, d_c=5.4e13, alpha_n=0.076, alpha_d=0.095),
}
GRIDS = {16: (4, 4), 32: (8, 4), 64: (8, 8)}
NOISE = 0.005  # of log loss


def make_sweep(truth, count, seed):
    """Return `count` runs of `truth` with noise, over a hundredfold range of sizes."""
    sizes, lengths = GRIDS[count]
    parameters = np.repeat(np.geomspace(1e7, 1e9, sizes), lengths)
    tokens = parameters * np.tile(np.geomspace(5, 80, lengths), sizes)
    errors = NOISE * np.random.default_rng(seed).normal(size=count)
    loss = truth.compute_loss(parameters, tokens) * np.exp(errors)
    return RunsTable.of(parameters=parameters, tokens=tokens, loss=loss)


def measure_coverage(truth, count, sweeps):
    """Return the share of `sweeps` whose interval holds the true loss, and the mean error."""
    held = 0
    errors = []
    for seed in range(sweeps):
        runs = make_sweep(truth, count, seed)
        settings = LawFit(bootstrap=Bootstrap(draws=100, seed=seed))
        law = fit_law(runs, settings, "sweep").law
        flops = 10 * float(runs.flops_6nd.max())
        parameters = float(np.sqrt(flops / 6 / 20))
        found = predict_loss(law, parameters, 20 * parameters)
        true = float(truth.compute_loss(parameters, 20 * parameters))
        assert found.loss_interval is not None
        held += found.loss_interval.contains(true)
        errors.append(abs(found.loss / true - 1))
    return {"held": held, "sweeps": sweeps, "mean_error": float(np.mean(errors))}


@pytest.mark.slow
def test_predictions_hold_the_truth():
    """The chance that fewer than 4 of 6 intervals of 95% hold the truth is 0.2%."""
    found = measure_coverage(TRUTHS["Parametric"], 32, 6)
    assert found["held"] >= 4
    assert found["mean_error"] < 0.02


@pytest.mark.soak
def test_predictions_hold_the_truth_for_each_form_and_number_of_runs():
    """`TRAINRIG_SWEEPS` says how many sweeps of each kind are simulated."""
    sweeps = int(os.environ.get("TRAINRIG_SWEEPS", "40"))
    found = {
        f"{name}, {count} runs": measure_coverage(truth, count, sweeps)
        for name, truth in TRUTHS.items()
        for count in GRIDS
    }
    dated = {"date": datetime.date.today().isoformat(), "coverage_of_95%": found}
    RESULTS.write_text(json.dumps(dated, indent=1) + "\n")
    for name, one in found.items():
        assert one["held"] >= 0.8 * one["sweeps"], name
