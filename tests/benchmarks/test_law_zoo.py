"""Zoo of laws: how well the default law of each published set of runs foretells its larger runs.

At five cuts of compute, the forms are fitted to the runs below and predict those above, alone and
together with the shares that `trainrig predict` gives them. `--out` of `pytest -m bench` is the
JSON file below, from which docs/evidence/scaling-laws.md has its table.
"""

import datetime
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainrig.errors import DataError
from trainrig.scaling.fit.law_fit import read_runs
from trainrig.scaling.laws.runs_screening import Exclusions, screen
from trainrig.scaling.laws.runs_table import RunsTable
from trainrig.scaling.regression import form_choice
from trainrig.scaling.regression.bootstrap import Bootstrap
from trainrig.scaling.regression.form_choice import CUTS, FIRST_CUT, HoldOut
from trainrig.scaling.regression.minimise import Huber

DATA = Path(os.environ.get("TRAINRIG_TEST_DATA", "")) / "scaling"
RESULTS = Path(__file__).parent / "results/law-zoo.json"
DRAWS = 40
pytestmark = [
    pytest.mark.bench,
    pytest.mark.data,
    pytest.mark.skipif("TRAINRIG_TEST_DATA" not in os.environ, reason="TRAINRIG_TEST_DATA"),
]
SETS = {
    "Chinchilla": ("chinchilla_extracted", "", 5),
    "Gadre et al., C4": ("gadre_small_runs", "c4_original", 0),
    "Gadre et al., RedPajama": ("gadre_small_runs", "rpj", 0),
    "Gadre et al., RefinedWeb": ("gadre_small_runs", "rw_original", 0),
    "OLMo's ladder": ("olmo_ladder_190M_1B", "", 0),
}


def read_set(file: str, recipe: str, dropped: int) -> RunsTable:
    runs = read_runs([str(DATA / f"{file}.csv")], recipes=[recipe] if recipe else [])
    return screen(runs, Exclusions(highest_losses=dropped)).runs


def judge_set(runs: RunsTable) -> dict[str, Any]:
    """Return the errors and the coverage of the default law of `runs` over all cuts."""
    rules = HoldOut()
    forms = form_choice.fit_forms(runs, rules, None, Huber())
    errors: list[float] = []
    within = rows = 0
    for share in np.linspace(FIRST_CUT, 1 - rules.share, CUTS).tolist():
        try:
            halves = form_choice.split_held_out(runs, HoldOut(share=1 - share))
            fits = form_choice.fit_rest(halves, forms, Huber())
        except DataError:
            continue
        found = form_choice.judge(halves, fits, Bootstrap(draws=DRAWS))
        errors.append(found.mean_absolute_error)
        judged = [row for row in found.rows if row.interval is not None]
        within += sum(row.interval.contains(row.loss) for row in judged if row.interval)
        rows += len(judged)
    return {
        "runs": len(runs),
        "default": forms.chosen,
        "shares": forms.weights,
        "error_by_form": {
            kind: float(found.compute_error(forms.cuts)) for kind, found in forms.foretold.items()
        },
        "error": float(np.mean(errors)),
        "within": within,
        "predicted": rows,
    }


@pytest.mark.timeout(3600)
def test_the_zoo_of_laws() -> None:
    found = {name: judge_set(read_set(*given)) for name, given in SETS.items()}
    RESULTS.write_text(
        json.dumps(
            {"date": datetime.date.today().isoformat(), "draws": DRAWS, "sets": found}, indent=1
        )
        + "\n"
    )
    for name, row in found.items():
        print(name, row)
        assert row["error"] < 0.1
        assert row["within"] >= 0.8 * row["predicted"]
