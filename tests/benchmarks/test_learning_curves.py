"""The law along a run: two schedules foretell the third, and the beginning of a run its end.

The curves are those of six real runs: 3 layers of 96 channels on Tiny Shakespeare by bytes, 1,500
steps of 12 rows of 64, AdamW at 2e-3, with a warm-up of 100 steps and the held-out loss of 256 rows
every 25 steps. `pytest -m bench` writes the JSON file below, which has the figures of two tables in
docs/evidence/scaling-laws.md.
"""

import datetime
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainrig.scaling.laws.law_forms import Array
from trainrig.scaling.laws.learning_curves import Curve, read_csv_curves
from trainrig.scaling.regression.curve_fit import CurveFit, fit_curves

FOLDER = Path(__file__).parent / "results"
CURVES = FOLDER / "learning-curves.csv"
RESULTS = FOLDER / "learning-curves.json"
SCHEDULES = ("cosine", "wsd", "constant")
SEEDS = (0, 1)
SHARES = (0.6, 0.8)  # of the run, from which its end is foretold
FIRST = 150  # step of the first loss, as CurveFit.skip has it for runs of 1,500 steps
pytestmark = pytest.mark.bench


@pytest.fixture(scope="module")
def curves() -> dict[str, Curve]:
    """Return the curve of each run by its name, such as `cosine-0`."""
    return {curve.name: curve for curve in read_csv_curves(str(CURVES))}


def select_losses(curves: Sequence[Curve]) -> Array:
    return np.concatenate([curve.losses[curve.steps >= FIRST] for curve in curves])


def summarise(predicted: Array, measured: Array) -> dict[str, float]:
    errors = predicted / measured - 1
    return {
        "end": float(errors[-1]),
        "mean": float(np.abs(errors).mean()),
        "worst": float(np.abs(errors).max()),
    }


def test_two_schedules_foretell_the_third(curves: dict[str, Curve]) -> None:
    crossed: list[dict[str, Any]] = []
    for schedule in SCHEDULES:
        known = [curves[f"{name}-{s}"] for name in SCHEDULES if name != schedule for s in SEEDS]
        annealing = fit_curves(known, CurveFit(draws=0)).form
        for seed in SEEDS:
            curve = curves[f"{schedule}-{seed}"]
            rows = curve.steps[curve.steps >= FIRST] - 1
            measured = select_losses([curve])
            crossed.append(
                {
                    "schedule": schedule,
                    "seed": seed,
                    "loss": float(measured[-1]),
                    **summarise(annealing.compute_losses(curve.rates)[rows], measured),
                }
            )
    begun: list[dict[str, Any]] = []
    for schedule in SCHEDULES:
        for share in SHARES:
            for helped in (False, True):
                for seed in SEEDS:
                    whole = curves[f"{schedule}-{seed}"]
                    done = int(share * whole.total)
                    rows = whole.steps <= done
                    own = Curve(
                        whole.name, whole.rates, whole.steps[rows], whole.losses[rows], done
                    )
                    others = [
                        curves[f"{name}-{1 - seed}"] for name in SCHEDULES if name != schedule
                    ]
                    fitted = fit_curves([own, *others] if helped else [own], CurveFit())
                    if schedule != "constant" and not fitted.anneals:
                        continue
                    loss, interval = fitted.predict(whole.rates, False)
                    begun.append(
                        {
                            "schedule": schedule,
                            "seed": seed,
                            "share": share,
                            "helped": helped,
                            "error": loss / float(whole.losses[-1]) - 1,
                            "interval": None if interval is None else [interval.low, interval.high],
                            "held": interval is not None
                            and interval.contains(float(whole.losses[-1])),
                        }
                    )
    RESULTS.write_text(
        json.dumps(
            {"date": datetime.date.today().isoformat(), "crossed": crossed, "begun": begun},
            indent=1,
        )
        + "\n"
    )
    assert max(abs(row["end"]) for row in crossed) < 0.035
