"""CPU seconds that fits of published runs spend on the search, the draws and the profiles."""

import json
import os
import statistics
import time
from pathlib import Path

import numpy as np
import pytest

from trainrig.scaling.laws.runs_files import read_table
from trainrig.scaling.regression.bootstrap import Bootstrap, bootstrap_form
from trainrig.scaling.regression.form_fits import fit_parametric
from trainrig.scaling.regression.minimise import Lad
from trainrig.scaling.regression.profile_likelihood import compute_profiles

pytestmark = [
    pytest.mark.bench,
    pytest.mark.data,
    pytest.mark.skipif(
        "TRAINRIG_TEST_DATA" not in os.environ,
        reason="TRAINRIG_TEST_DATA names no folder with real data",
    ),
]

ROUNDS = 5


def measure_seconds(what):
    """Return the median CPU seconds of `ROUNDS` calls, and the result of the last."""
    spent = []
    for _ in range(ROUNDS):
        began = time.process_time()
        found = what()
        spent.append(time.process_time() - began)
    return round(statistics.median(spent), 3), found


def test_fitting_240_runs():
    runs = read_table(
        str(Path(os.environ["TRAINRIG_TEST_DATA"], "scaling/chinchilla_extracted.csv"))
    )
    runs = runs.select(runs.loss < np.sort(runs.loss)[-5])
    huber, fit = measure_seconds(lambda: fit_parametric(runs))
    lad, _ = measure_seconds(lambda: fit_parametric(runs, loss=Lad()))
    draws, drawn = measure_seconds(lambda: bootstrap_form(fit, Bootstrap(draws=1000)))
    tied, _ = measure_seconds(lambda: compute_profiles(fit))
    found = {
        "runs": len(runs),
        "huber_fit_seconds": huber,
        "lad_fit_seconds": lad,
        "1000_draws_seconds": draws,
        "draws_failed": drawn.draws.failed,
        "five_profiles_seconds": tied,
        "intervals": {name: str(e.bootstrap) for name, e in drawn.compute_estimates().items()},
    }
    print(json.dumps(found))
    assert huber < 1
    assert draws < 10
