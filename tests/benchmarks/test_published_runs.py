"""Scaling laws of published tables of runs: fitted on small runs, judged on the largest ones."""

import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.refits import make_refit

from trainrig.scaling.fit.fit_verb import build_settings
from trainrig.scaling.fit.law_fit import LawFit, fit_law, read_runs
from trainrig.scaling.fit.recipe_comparison import RecipeFit, compare
from trainrig.scaling.laws.law import Law
from trainrig.scaling.laws.runs_table import RunsTable
from trainrig.scaling.regression import hoffmann
from trainrig.scaling.regression.approaches import PowerLine
from trainrig.scaling.regression.bootstrap import Bootstrap, bootstrap

DATA = Path(os.environ.get("TRAINRIG_TEST_DATA", "")) / "scaling"
pytestmark = [
    pytest.mark.bench,
    pytest.mark.data,
    pytest.mark.skipif("TRAINRIG_TEST_DATA" not in os.environ, reason="TRAINRIG_TEST_DATA"),
]


def fit_optima_line(runs: RunsTable, rules: Bootstrap) -> PowerLine:
    """Fit N*(C) to a table whose rows are optima already, one or more for each budget."""

    def line(drawn: RunsTable) -> list[float]:
        law = hoffmann.fit_power(drawn.flops, drawn.parameters)
        return [float(np.log(law.coefficient)), law.exponent]

    law = hoffmann.fit_power(runs.flops, runs.parameters)
    return PowerLine(law, bootstrap(make_refit(line, runs, 2), runs, rules), len(runs))


def format_interval(found: Any) -> list[float | None] | None:
    return None if found is None else [found.low, found.high]


def summarise_law(law: Law, cpu: float) -> dict[str, Any]:
    """Return a short summary of the figures that a law is judged by."""
    assert law.fit is not None and law.held_out is not None
    rows = law.held_out.rows
    return {
        "form": law.form.kind,
        "rows": law.fit.rows_used,
        "constants": {
            name: [one.value, format_interval(one.bootstrap), format_interval(one.profile)]
            for name, one in law.estimates.items()
            if "(" not in name
        },
        "objective": law.fit.objective,
        "starts_that_agree": law.fit.starts_that_agree,
        "draws_failed": law.fit.draws_failed,
        "held_out": {
            "rule": law.held_out.rule,
            "mean_error": law.held_out.mean_absolute_error,
            "worst_error": law.held_out.worst_absolute_error,
            "within": [sum(r.interval.contains(r.loss) for r in rows if r.interval), len(rows)],
        },
        "held_out_error_by_form": {one.form.kind: one.held_out_error for one in law.compared},
        "approaches": {
            one.name: one.parameters_exponent
            and [one.parameters_exponent.value, format_interval(one.parameters_exponent.bootstrap)]
            for one in law.approaches
        },
        "cpu_seconds": round(cpu, 1),
    }


@pytest.mark.parametrize(
    ("name", "recipe", "options"),
    [
        ("chinchilla_extracted", None, {"drop_highest": 5, "form": "Parametric"}),
        ("gadre_small_runs", "c4_original", {"form": "Parametric"}),
        ("gadre_small_runs", "c4_original", {"form": "OverTraining"}),
        ("gadre_small_runs", "rpj", {"form": "Parametric"}),
        ("gadre_small_runs", "rpj", {"form": "OverTraining"}),
        ("gadre_small_runs", "rw_original", {"form": "Parametric"}),
        ("gadre_small_runs", "rw_original", {"form": "OverTraining"}),
        ("olmo_ladder_190M_1B", None, {"form": "Parametric"}),
        ("olmo_ladder_190M_1B", None, {"form": "Kaplan"}),
        ("datablations_lt4B", None, {"form": "DataConstrained"}),
    ],
)
def test_a_published_table(name: str, recipe: str | None, options: dict[str, Any]) -> None:
    runs = read_runs([str(DATA / f"{name}.csv")], recipes=[recipe] if recipe else [])
    settings: LawFit = build_settings({"draws": 200, **options})
    begun = time.process_time()
    law = fit_law(runs, settings, recipe or name).law
    print(
        json.dumps(
            {"file": name, "recipe": recipe} | summarise_law(law, time.process_time() - begun)
        )
    )
    assert law.held_out is not None
    assert law.held_out.mean_absolute_error < 0.1


# Porian et al. 2024 (arXiv:2406.19146), figure 1: one correction at a time from Kaplan's law to
# Hoffmann's.
CORRECTIONS = (
    "base/long/kaplan/kaplan/train",
    "base/long/kaplan/standard/val",  # counts the head
    "base/short/kaplan/standard/val",  # has a shorter warm-up
    "base/short/chinchilla/standard/val",  # decays rates within each budget
    "tuned/short/const/standard/val",  # sets rate, batch and beta by size
)


def test_published_optima() -> None:
    """Predict the two largest budgets of each study of Porian et al. from the others.

    Each of their corrections lowers the exponent, down to one half.
    """
    exponents = {}
    runs = read_runs([str(DATA / "porian_optimal_pairs.csv")])
    runs = runs.select(np.isfinite(runs.parameters))
    for study in dict.fromkeys(runs.recipe):
        rows = runs.select(runs.recipe == study)
        rows = rows.select(np.argsort(rows.flops, kind="stable"))
        line = fit_optima_line(rows, Bootstrap(draws=500)).build_approach("optima", "")
        small = fit_optima_line(rows.select(np.arange(len(rows) - 2)), Bootstrap(draws=500))
        errors = small.law(rows.flops[-2:]) / rows.parameters[-2:] - 1
        exponent = line.parameters_exponent
        assert exponent is not None
        exponents[str(study)] = exponent.value
        found = {
            "study": str(study),
            "budgets": len(rows),
            "exponent": [exponent.value, format_interval(exponent.bootstrap)],
            "errors_of_the_two_largest": errors.tolist(),
        }
        print(json.dumps(found))
    for texts in ("rw", "owt2"):
        steps = [exponents[f"{texts}/{correction}"] for correction in CORRECTIONS]
        assert steps == sorted(steps, reverse=True)
        assert steps[0] > 0.8 and abs(steps[-1] - 0.5) < 0.03


def test_published_recipes() -> None:
    """Compare laws of Gadre et al.'s data sets that share exponents with independent laws.

    At the smallest and the largest budget, the losses relative to C4's under shared exponents lie
    within the intervals of the laws that share nothing.
    """
    runs = read_runs([str(DATA / "gadre_small_runs.csv")])
    names = ("c4_original", "rpj", "rw_original")
    tables = {name: runs.select(runs.recipe == name) for name in names}
    fits = [
        compare(tables, RecipeFit(share=share, bootstrap=Bootstrap(draws=500)))
        for share in ("exponents", "nothing")
    ]
    for found in fits:
        print(found.model_dump_json(include={"share", "differences", "criterion_of_sharing"}))
    shared, apart = (found.differences for found in fits)
    assert len(shared) == len(apart) == 4
    for one, other in zip(shared, apart, strict=True):
        assert (one.recipe, one.flops) == (other.recipe, other.flops)
        assert one.loss.bootstrap is not None
        assert one.loss.bootstrap.contains(other.loss.value)
