"""Laws along a run: two schedules foretell the third, and the beginning of a run its end.

The curves are those of six real runs: 3 layers of 96 channels on Tiny Shakespeare by bytes, 1,500
steps of 12 rows of 64, AdamW at 2e-3, with a warm-up of 100 steps and the held-out loss of 256 rows
every 25 steps. The annealing law (arXiv:2408.11029) is compared with the multi-power law
(arXiv:2503.12811), which is implemented here alone. `pytest -m bench` writes the JSON file below,
from which docs/evidence/scaling-laws.md has its tables.
"""

import datetime
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import least_squares

from trainrig.scaling.laws.annealing_law import count_falls, sum_rates
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


class MultiPower:
    """L0 + A S1^-alpha - B sum_k fall_k (1 - (1 + C S_k / rate_k^gamma)^-beta)."""

    def __init__(self, curves: Sequence[Curve]) -> None:
        """Store the sums of `curves` at their steps from FIRST on."""
        self.parts = []
        for curve in curves:
            shares = curve.rates / 2e-3
            falls = count_falls(shares)
            steps = curve.steps[curve.steps >= FIRST] - 1
            sums = sum_rates(shares)
            at = np.flatnonzero(falls)
            # Sum of the rates since each fall, or 0 before it.
            since = np.maximum(0, sums[steps][:, None] - (sums[at] - shares[at])[None, :])
            since *= steps[:, None] >= at[None, :]
            self.parts.append((sums[steps], falls[at], np.maximum(shares[at], 1e-12), since))

    def compute_losses(self, theta: Array) -> Array:
        """Return the losses of all curves, one after another."""
        level, scale, alpha, saved, speed, beta, gamma = np.exp(theta)
        losses = []
        for sums, falls, rates, since in self.parts:
            gained = 1 - (1 + speed * since * rates**-gamma) ** -beta
            losses.append(level + scale * sums**-alpha - saved * (gained @ falls))
        return np.concatenate(losses)


def fit_multi_power(curves: Sequence[Curve]) -> Array:
    """Return the constants of least Huber loss over eight starts."""
    law = MultiPower(curves)
    targets = np.log(select_losses(curves))
    ends = []
    for speed in (0.02, 0.2):
        for gamma in (0.3, 0.8):
            for alpha in (0.2, 0.5):
                start = np.log([1.2, 5.0, alpha, 0.3, speed, 0.5, gamma])
                ends.append(
                    least_squares(
                        lambda theta: np.log(np.maximum(law.compute_losses(theta), 1e-3)) - targets,
                        start,
                        bounds=(start - 5, start + 5),
                        loss="huber",
                        f_scale=1e-3,
                        max_nfev=100,
                    )
                )
    return np.asarray(min(ends, key=lambda end: float(end.cost)).x)


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
        powers = fit_multi_power(known)
        for seed in SEEDS:
            curve = curves[f"{schedule}-{seed}"]
            rows = curve.steps[curve.steps >= FIRST] - 1
            measured = select_losses([curve])
            crossed.append(
                {
                    "schedule": schedule,
                    "seed": seed,
                    "loss": float(measured[-1]),
                    "annealing": summarise(annealing.compute_losses(curve.rates)[rows], measured),
                    "multi_power": summarise(MultiPower([curve]).compute_losses(powers), measured),
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
    ours = np.mean([abs(row["annealing"]["end"]) for row in crossed])
    theirs = np.mean([abs(row["multi_power"]["end"]) for row in crossed])
    assert ours < theirs
