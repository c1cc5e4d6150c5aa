"""Long version: how often 95% intervals hold the truth, over 200 sweeps of 200 draws each.

Approaches differ; `results/approaches.json` records the coverage as found.
"""

import datetime
import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainrig.scaling.fit.recipe_comparison import RecipeFit, compare
from trainrig.scaling.laws.law import Interval
from trainrig.scaling.laws.law_forms import Kaplan, Parametric
from trainrig.scaling.laws.runs_table import RunsTable
from trainrig.scaling.regression.approaches import (
    PowerLine,
    fit_envelope_line,
    fit_frontier_laws,
    fit_isoflop_line,
)
from trainrig.scaling.regression.bootstrap import Bootstrap, bootstrap_form
from trainrig.scaling.regression.form_fits import fit_kaplan_form
from trainrig.scaling.regression.hoffmann import Envelope, IsoFlop
from trainrig.scaling.regression.minimise import Squares

pytestmark = pytest.mark.soak

HERE = Path(__file__).parent
# Noise in log loss, about the spread between seeds of one model.
SWEEPS = 200
DRAWS = 200
NOISE = 0.003
LAW = Parametric(E=1.8172, A=482.01, B=2085.43, alpha=0.3478, beta=0.3658)  # arXiv:2404.10102
SKEWED = Parametric(E=1.69, A=406.4, B=410.7, alpha=0.34, beta=0.28)  # Hoffmann et al., rounded
KAPLAN = Kaplan(n_c=6.4e13, d_c=1.8e13, alpha_n=0.076, alpha_d=0.103)

Found = dict[str, tuple[Interval | None, float]]  # quantity -> its interval and its truth


def compute_noisy_loss(
    law: Parametric | Kaplan, n: Any, d: Any, seed: int, **more: Any
) -> RunsTable:
    scatter = np.exp(NOISE * np.random.default_rng(seed).normal(size=len(n)))
    return RunsTable.of(parameters=n, tokens=d, loss=law.compute_loss(n, d) * scatter, **more)


def make_isoflops(law: Parametric, seed: int, centre: float = 1.0, width: float = 4.0) -> RunsTable:
    """Return runs at five budgets: nine sizes within a factor `width` of `centre` x the best."""
    flops = np.repeat(np.geomspace(1e18, 1e21, 5), 9)
    n = (
        law.compute_optimum(flops).parameters
        * centre
        * np.tile(np.geomspace(1 / width, width, 9), 5)
    )
    return compute_noisy_loss(law, n, flops / 6 / n, seed, budget=flops)


def make_training_runs(law: Parametric, seed: int, sizes: int) -> RunsTable:
    """Return runs of sizes over a factor of 100, each at 20 points of its training curve."""
    n = np.repeat(np.geomspace(3e7, 3e9, sizes), 20)
    d = n * np.tile(np.geomspace(2, 200, 20), sizes)
    return compute_noisy_loss(law, n, d, seed, trial=[f"{size:.6g}" for size in n])


def make_grid(law: Parametric | Kaplan, seed: int) -> RunsTable:
    n, d = (v.ravel() for v in np.meshgrid(np.geomspace(1e7, 1e9, 6), np.geomspace(1e9, 1e11, 6)))
    return compute_noisy_loss(law, n, d, seed)


def find_by_isoflop(law: Parametric, centre: float, width: float) -> Callable[[int], Found]:
    def find(seed: int) -> Found:
        runs = make_isoflops(law, seed, centre, width)
        line, _ = fit_isoflop_line(runs, IsoFlop(within=None), Bootstrap(draws=DRAWS, seed=seed))
        return describe_line(line, law)

    return find


def find_by_envelope(law: Parametric, sizes: int) -> Callable[[int], Found]:
    def find(seed: int) -> Found:
        runs = make_training_runs(law, seed, sizes)
        line, _ = fit_envelope_line(runs, Envelope(), Bootstrap(draws=DRAWS, seed=seed))
        return describe_line(line, law)

    return find


def describe_line(line: PowerLine, law: Parametric) -> Found:
    """Return the exponent, and N* at the greatest compute, which shows a bias of all budgets."""
    log_k, a = line.draws.good.T
    best = float(np.log(law.compute_optimum(1e21).parameters))
    return {
        "a": (line.draws.compute_interval(a), law.parameters_exponent),
        "ln N* at 1e21": (line.draws.compute_interval(log_k + a * np.log(1e21)), best),
    }


def find_by_kaplan(seed: int) -> Found:
    fit = fit_kaplan_form(make_grid(KAPLAN, seed), Squares())
    found = bootstrap_form(fit, Bootstrap(draws=DRAWS, seed=seed)).compute_estimates()
    return {name: (found[name].bootstrap, true) for name, true in KAPLAN.constants.items()}


def find_by_frontiers(seed: int) -> Found:
    """Return Kaplan's L(N) and L(D).

    Their true values need endless tokens and parameters, which no sweep has.
    """
    found = fit_frontier_laws(make_grid(KAPLAN, seed), Bootstrap(draws=DRAWS, seed=seed))
    truths = {"L(N).alpha": KAPLAN.alpha_n, "L(D).alpha": KAPLAN.alpha_d}
    return {name: (found[name].bootstrap, true) for name, true in truths.items()}


def find_by_recipes(seed: int) -> Found:
    scale = 1.4 ** -(LAW.alpha * LAW.beta / (LAW.alpha + LAW.beta))
    better = LAW.with_constants({"A": LAW.A * scale, "B": LAW.B * scale})
    tables = {"web": make_grid(LAW, 2 * seed), "filtered": make_grid(better, 2 * seed + 1)}
    rules = Bootstrap(draws=DRAWS, seed=seed)
    at = RecipeFit(flops=(1e19, 1e21), bootstrap=rules, loss=Squares())
    return {
        f"multiplier at {one.flops:.0e}": (
            one.multiplier.bootstrap if one.multiplier else None,
            1.4,
        )
        for one in compare(tables, at).differences
    }


CASES: dict[str, Callable[[int], Found]] = {
    "isoflop, centred, 4x to both sides": find_by_isoflop(LAW, 1, 4),
    "isoflop, off centre by 2": find_by_isoflop(LAW, 2, 4),
    "isoflop, exponents .34 and .28, 10x to both sides": find_by_isoflop(SKEWED, 1, 10),
    "isoflop, exponents .34 and .28, off centre by 2": find_by_isoflop(SKEWED, 2, 4),
    "envelope, 12 sizes": find_by_envelope(LAW, 12),
    "envelope, 20 sizes": find_by_envelope(LAW, 20),
    "envelope, 40 sizes": find_by_envelope(LAW, 40),
    "Kaplan's L(N, D)": find_by_kaplan,
    "Kaplan's frontiers": find_by_frontiers,
    "recipes": find_by_recipes,
}


def test_how_often_intervals_hold_the_truth() -> None:
    begun = time.process_time()
    found = {name: measure_coverage(find) for name, find in CASES.items()}
    print(json.dumps(found))
    write(found, time.process_time() - begun)
    for name in ("isoflop, centred, 4x to both sides", "envelope, 20 sizes"):
        assert 0.9 <= found[name]["a"]["coverage"] <= 1.0, name
    assert all(one["coverage"] >= 0.9 for one in found["Kaplan's L(N, D)"].values())
    assert all(one["coverage"] >= 0.9 for one in found["recipes"].values())


def measure_coverage(find: Callable[[int], Found]) -> dict[str, dict[str, float]]:
    """Return, by quantity, the share of sweeps whose interval holds the truth, and its width."""
    held: dict[str, list[bool]] = {}
    widths: dict[str, list[float]] = {}
    for seed in range(SWEEPS):
        for quantity, (interval, truth) in find(seed).items():
            held.setdefault(quantity, []).append(interval is not None and interval.contains(truth))
            if interval and interval.low is not None and interval.high is not None:
                widths.setdefault(quantity, []).append(interval.high - interval.low)
    return {
        quantity: {
            "coverage": float(np.mean(hits)),
            "median_width": float(np.median(widths.get(quantity, [np.inf]))),
        }
        for quantity, hits in held.items()
    }


def write(found: dict[str, Any], cpu_seconds: float) -> None:
    command = ["git", "rev-parse", "HEAD"]
    commit = subprocess.run(command, capture_output=True, text=True, cwd=HERE).stdout.strip()
    stamp = {"date": datetime.date.today().isoformat(), "commit": commit}
    how = {"sweeps": SWEEPS, "draws": DRAWS, "noise": NOISE, "cpu_seconds": round(cpu_seconds)}
    folder = HERE.parent / "results"
    folder.mkdir(exist_ok=True)
    text = json.dumps(stamp | how | {"coverage_of_95%": found}, indent=1)
    (folder / "approaches.json").write_text(text + "\n")
