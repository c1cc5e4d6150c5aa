import os
from pathlib import Path

import numpy as np
import pytest

from trainrig.errors import DataError
from trainrig.scaling.laws.law_forms import OverTraining
from trainrig.scaling.laws.runs_files import read_table
from trainrig.scaling.laws.runs_table import RunsTable
from trainrig.scaling.regression.bootstrap import Bootstrap, bootstrap_form
from trainrig.scaling.regression.form_fits import fit_overtraining
from trainrig.scaling.regression.profile_likelihood import profile

TRUTH = OverTraining(E=1.76, a=174.0, b=302.0, eta=0.13)
REAL = os.environ.get("TRAINRIG_TEST_DATA")


def make_sweep(noise=0.0):
    parameters = np.repeat(np.geomspace(1e7, 4e8, 5), 6)
    tokens = parameters * np.tile(np.geomspace(5, 640, 6), 5)
    errors = noise * np.random.default_rng(0).normal(size=30)
    loss = TRUTH.compute_loss(parameters, tokens) * np.exp(errors)
    return RunsTable.of(parameters=parameters, tokens=tokens, loss=loss)


def test_runs_without_noise_give_their_law_back():
    found = fit_overtraining(make_sweep()).form.constants
    assert found == pytest.approx(TRUTH.constants, rel=1e-6)


def test_runs_of_one_token_multiplier_lie_on_one_ray():
    runs = make_sweep()
    ray = RunsTable.of(parameters=runs.parameters, tokens=20 * runs.parameters, loss=runs.loss)
    with pytest.raises(DataError, match=r"ratio D/N = 20.*OverTraining cannot separate"):
        fit_overtraining(ray)


@pytest.mark.data
@pytest.mark.skipif(not REAL, reason="TRAINRIG_TEST_DATA names no folder with real data")
@pytest.mark.parametrize(
    ("dataset", "error"), [("c4_original", 0.016), ("rpj", 0.008), ("rw_original", 0.015)]
)
def test_published_runs_are_predicted_from_the_smaller_ones(dataset, error):
    """The fifth of the runs with the most compute is held out.

    `error` bounds their mean relative error.
    """
    runs = read_table(str(Path(REAL, "scaling", "gadre_small_runs.csv")))
    runs = runs.select(runs.recipe == dataset)
    order = np.argsort(runs.flops_6nd)
    fit = fit_overtraining(runs.select(order[:-7]))
    large = runs.select(order[-7:])
    off = np.abs(fit.form.compute_loss(large.parameters, large.tokens) / large.loss - 1)
    assert off.mean() < error
    assert fit.agree > 0.9
    drawn = bootstrap_form(fit, Bootstrap(draws=100)).compute_estimates()["eta"]
    assert drawn.bootstrap.contains(drawn.value)
    assert profile(fit, lambda form: form.eta).interval.contains(drawn.value)
