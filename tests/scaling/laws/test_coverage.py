"""Coverage of intervals, measured on sweeps whose law is known."""

import datetime
import json
import subprocess
import time
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from trainrig.scaling.laws.law_forms import Parametric
from trainrig.scaling.laws.runs_table import RunsTable
from trainrig.scaling.regression.bootstrap import Bootstrap, bootstrap_form
from trainrig.scaling.regression.form_fits import fit_parametric
from trainrig.scaling.regression.profile_likelihood import compute_profiles, profile

TRUTH = Parametric(E=1.82, A=478.0, B=2143.0, alpha=0.347, beta=0.367)
# Enough starts for simple sweeps.
fit_quick = partial(fit_parametric, exponents=(0.2, 0.5), floors=(0.5, 0.9))
RESULTS = Path(__file__).parents[1] / "results"
ASKED = {
    "parameters_exponent": lambda form: form.parameters_exponent,
    "N* at 1e22": lambda form: (
        form.compute_optimum(1e22).parameters
    ),  # the largest run here has 6e20
    "loss at 1e10, 2e11": lambda form: form.compute_loss(1e10, 2e11),
}


def draw_normal(rng, runs):
    return 0.01 * rng.normal(size=len(runs))


def draw_heavy_tails(rng, runs):
    return 0.005 * rng.standard_t(3, size=len(runs))


def draw_uneven(rng, runs):
    """Return noise that is three times as large for small runs as for large ones."""
    size = np.log(runs.parameters / runs.parameters.min()) / np.log(100)
    return 0.015 * (1 - size * 2 / 3) * rng.normal(size=len(runs))


def draw_by_training_run(rng, runs):
    """Return noise, half of whose variance the points of one training run share."""
    _, trial = np.unique(runs.trial, return_inverse=True)
    return 0.007 * (rng.normal(size=trial.max() + 1)[trial] + rng.normal(size=len(runs)))


def make_grid(sizes, lengths, replicas=1):
    """Return runs of the exact law.

    All token counts of one size and replica belong to one training run.
    """
    rows_of_size = lengths * replicas
    parameters = np.repeat(np.geomspace(1e7, 1e9, sizes), rows_of_size)
    tokens = parameters * np.tile(np.geomspace(2, 100, lengths), sizes * replicas)
    trial = [f"{row // lengths:03}" for row in range(sizes * rows_of_size)]
    loss = TRUTH.compute_loss(parameters, tokens)
    return RunsTable.of(parameters=parameters, tokens=tokens, loss=loss, trial=trial)


CASES = {
    "64 runs, normal noise of 1%": (make_grid(8, 8), draw_normal, "rows"),
    "25 runs, normal noise of 1%": (make_grid(5, 5), draw_normal, "rows"),
    "64 runs, Student's t of 3 degrees": (make_grid(8, 8), draw_heavy_tails, "rows"),
    "64 runs, noise that falls with size": (make_grid(8, 8), draw_uneven, "rows"),
    "24 training runs of 4 points, half the noise shared": (
        make_grid(8, 4, 3),
        draw_by_training_run,
        "trials",
    ),
}


def add_noise(runs, noise, resample, seed):
    """Return the same runs with `noise`.

    If they are resampled by rows, each row is a separate trial.
    """
    errors = noise(np.random.default_rng(seed), runs)
    trial = runs.name if resample == "rows" else runs.trial
    return RunsTable.of(
        parameters=runs.parameters,
        tokens=runs.tokens,
        loss=runs.loss * np.exp(errors),
        trial=trial,
    )


def measure_coverage(case, sweeps, draws):
    """Return the share of `sweeps` whose 95% intervals hold the truth, by method and quantity."""
    runs, noise, resample = CASES[case]
    truth = TRUTH.constants | {name: float(asked(TRUTH)) for name, asked in ASKED.items()}
    held = Counter()
    seconds = Counter()
    failed = 0
    for seed in range(sweeps):
        began = time.process_time()
        fit = fit_quick(add_noise(runs, noise, resample, seed))
        settings = Bootstrap(draws=draws, seed=seed, resample=resample)
        drawn = bootstrap_form(fit, settings)
        estimates = drawn.compute_estimates(ASKED)
        middle = time.process_time()
        tied = compute_profiles(fit, ASKED)
        seconds["bootstrap"] += middle - began
        seconds["profile"] += time.process_time() - middle
        failed += drawn.draws.failed
        for name, value in truth.items():
            held["bootstrap", name] += estimates[name].bootstrap.contains(value)
            held["profile", name] += tied[name].interval.contains(value)
    return {
        "sweeps": sweeps,
        "draws": draws,
        "draws_failed": failed,
        "cpu_seconds": {method: round(spent, 1) for method, spent in seconds.items()},
        **{
            method: {name: held[method, name] / sweeps for name in truth}
            for method in ("bootstrap", "profile")
        },
    }


@pytest.mark.slow
def test_intervals_hold_the_truth_about_as_often_as_they_say():
    """The chance that fewer than 13 of 16 intervals of 95% hold the truth is 1%."""
    runs, noise, resample = CASES["64 runs, normal noise of 1%"]
    held = Counter()
    for seed in range(16):
        fit = fit_quick(add_noise(runs, noise, resample, seed))
        drawn = bootstrap_form(fit, Bootstrap(draws=40, seed=seed)).compute_estimates(ASKED)
        for name in ("alpha", "parameters_exponent"):
            value = TRUTH.parameters_exponent if name in ASKED else TRUTH.alpha
            held[name] += drawn[name].bootstrap.contains(value)
        if seed < 8:
            held["profile"] += profile(fit, lambda form: form.alpha).interval.contains(TRUTH.alpha)
    assert held["alpha"] >= 13
    assert held["parameters_exponent"] >= 13
    assert held["profile"] >= 6


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_the_coverage_of_both_intervals_is_measured():
    """Measure 200 sweeps of 200 warm-started draws in each case, for results/coverage.json."""
    found = {}
    for case in CASES:
        found[case] = measure_coverage(case, sweeps=200, draws=200)
        print(json.dumps({case: found[case]}), flush=True)
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], capture_output=True, text=True, cwd=RESULTS.parent
    )
    stamp = {"date": datetime.date.today().isoformat(), "commit": commit.stdout.strip()}
    RESULTS.mkdir(exist_ok=True)
    text = json.dumps(stamp | {"level": 0.95, "coverage": found}, indent=1)
    Path(RESULTS, "coverage.json").write_text(text + "\n")
    for case in ("64 runs, normal noise of 1%", "64 runs, Student's t of 3 degrees"):
        for method in ("bootstrap", "profile"):
            for name, share in found[case][method].items():
                assert 0.9 <= share <= 0.99, (case, method, name)
