"""Zoo of laws: how well the default law of each published set of runs foretells its larger runs.

At five cuts of compute, the default law is learnt from the runs below alone, with its form, its
shares and its spread, and predicts those above. Runs far larger than a table has are predicted from
all of it. `pytest -m bench` writes the JSON file below, from which docs/evidence/scaling-laws.md
has its table.
"""

import datetime
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainrig.errors import DataError
from trainrig.scaling.fit.law_fit import LawFit, fit_law, read_runs
from trainrig.scaling.laws.runs_screening import Exclusions, screen
from trainrig.scaling.laws.runs_table import RunsTable
from trainrig.scaling.plan.loss_prediction import predict_loss
from trainrig.scaling.regression import form_choice
from trainrig.scaling.regression.bootstrap import Bootstrap
from trainrig.scaling.regression.foretelling import HoldOut, split_held_out
from trainrig.scaling.regression.minimise import Huber

DATA = Path(os.environ.get("TRAINRIG_TEST_DATA", "")) / "scaling"
RESULTS = Path(__file__).parent / "results/law-zoo.json"
DRAWS = 40
CUTS = 5
FIRST_CUT = 0.5
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
# Runs of Gadre et al. of 9 to 18 times the compute of the table: parameters, tokens, and the
# loss on C4's validation split (github.com/mlfoundations/scaling, exp_data/models).
LARGE = {
    "Gadre et al., C4": [(6_889_410_560, 137_788_211_200, 2.382220)],
    "Gadre et al., RedPajama": [
        (6_889_410_560, 137_788_211_200, 2.424993),
        (1_439_795_200, 921_468_928_000, 2.502054),
    ],
    "Gadre et al., RefinedWeb": [(6_889_410_560, 137_788_211_200, 2.454722)],
}
# The five runs that Gadre et al. fit their law to (arXiv:2403.08540, table 2).
FIVE = (
    "d=96_l=8_h=4-1.0",
    "d=512_l=8_h=4-1.0",
    "d=576_l=24_h=8-1.0",
    "d=1024_l=24_h=8-1.0",
    "d=96_l=8_h=4-16.0",
)


def read_set(file: str, recipe: str, dropped: int) -> RunsTable:
    runs = read_runs([str(DATA / f"{file}.csv")], recipes=[recipe] if recipe else [])
    return screen(runs, Exclusions(highest_losses=dropped)).runs


def judge_set(runs: RunsTable) -> dict[str, Any]:
    """Return the errors and the coverage of the default law of `runs` over all cuts."""
    rules = HoldOut()
    forms = form_choice.fit_forms(runs, rules, None, Huber())
    errors: list[float] = []
    widths: list[float] = []
    within = rows = 0
    for share in np.linspace(FIRST_CUT, 1 - rules.share, CUTS).tolist():
        split = split_held_out(runs, HoldOut(share=1 - share))
        try:
            found = form_choice.judge(forms, split, rules, Bootstrap(draws=DRAWS))
        except DataError:
            continue
        errors.append(found.mean_absolute_error)
        for row in found.rows:
            if row.interval is not None:
                assert row.interval.low is not None and row.interval.high is not None
                widths.append((row.interval.high - row.interval.low) / row.loss)
                within += row.interval.contains(row.loss)
                rows += 1
    return {
        "runs": len(runs),
        "default": forms.chosen,
        "shares": forms.weights,
        "error_by_form": {
            kind: float(found.compute_error(forms.cuts)) for kind, found in forms.foretold.items()
        },
        "error": float(np.mean(errors)),
        "width": float(np.mean(widths)),
        "within": within,
        "predicted": rows,
    }


def predict_large(name: str, settings: LawFit, names: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """Predict the runs of LARGE from the table, or from its rows `names` alone."""
    runs = read_set(*SETS[name])
    if names:
        runs = runs.select(np.array([str(row).split("-", 1)[1] in names for row in runs.name]))
    law = fit_law(runs, settings, name).law
    found = []
    for parameters, tokens, loss in LARGE[name]:
        predicted = predict_loss(law, parameters, tokens)
        interval = predicted.loss_interval
        found.append(
            {
                "parameters": parameters,
                "tokens": tokens,
                "shares": predicted.shares,
                "error": predicted.loss / loss - 1,
                "interval": interval and [interval.low, interval.high],
                "within": interval and interval.contains(loss),
            }
        )
    return found


@pytest.mark.timeout(3600)
def test_the_zoo_of_laws() -> None:
    found = {name: judge_set(read_set(*given)) for name, given in SETS.items()}
    few = Bootstrap(draws=200)
    alone = LawFit(bootstrap=few, form="OverTraining", hold_out=HoldOut(share=0))
    for name in LARGE:
        found[name]["large"] = predict_large(name, LawFit(bootstrap=few))
        found[name]["large_of_five"] = predict_large(name, alone, FIVE)
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
