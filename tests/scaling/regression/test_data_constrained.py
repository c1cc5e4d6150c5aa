import os
from pathlib import Path

import numpy as np
import pytest
from support.fixed_laws import fit_repeats

from trainrig.errors import DataError
from trainrig.scaling.laws.law_forms import DataConstrained, Parametric
from trainrig.scaling.laws.runs_files import read_table
from trainrig.scaling.laws.runs_table import RunsTable
from trainrig.scaling.regression.data_constrained import fit_data_constrained
from trainrig.scaling.regression.profile_likelihood import profile

BASE = Parametric(E=1.869144, A=520.825, B=1487.716, alpha=0.3526596, beta=0.3526596)
TRUTH = DataConstrained(base=BASE, r_d=15.0, r_n=5.0)  # about the values in the paper
REAL = os.environ.get("TRAINRIG_TEST_DATA")


def make_sweep(noise=0.0, epochs=(1, 2, 4, 8, 16, 32, 64)):
    parameters = np.repeat(np.geomspace(1e7, 3e9, 6), len(epochs))
    unique = np.tile([1e8, 1e9, 1e8, 1e9, 3e8, 3e9], len(epochs))
    tokens = unique * np.tile(epochs, 6)
    errors = noise * np.random.default_rng(0).normal(size=len(tokens))
    loss = TRUTH.compute_loss(parameters, tokens, unique) * np.exp(errors)
    return RunsTable.of(parameters=parameters, tokens=tokens, unique_tokens=unique, loss=loss)


def test_runs_without_noise_give_their_law_back():
    fit = fit_repeats(make_sweep(), BASE)
    assert fit.form.constants == pytest.approx(TRUTH.constants, rel=1e-4)


def test_the_base_law_can_be_fitted_along():
    fit = fit_data_constrained(make_sweep(), repeats=(8.0,))
    assert fit.form.constants == pytest.approx(TRUTH.constants, rel=1e-2)


def test_runs_that_repeat_nothing_are_refused():
    runs = make_sweep(epochs=(1, 1))
    with pytest.raises(DataError, match=r"0 of 12 runs repeat their.*least 4 of"):
        fit_repeats(runs, BASE)
    unknown = RunsTable.of(parameters=runs.parameters, tokens=runs.tokens, loss=runs.loss)
    with pytest.raises(DataError, match="0 of 12 runs repeat their data"):
        fit_repeats(unknown, BASE)


@pytest.mark.data
@pytest.mark.skipif(not REAL, reason="TRAINRIG_TEST_DATA names no folder with real data")
def test_published_runs_have_the_papers_minimum_and_a_flat_profile():
    """The fit uses 165 of the paper's 182 runs.

    The paper reports R_D* = 15.39 and R_N* = 5.31 without intervals.
    """
    runs = read_table(str(Path(REAL, "scaling", "datablations_lt4B.csv")))
    fit = fit_repeats(runs, BASE)
    assert fit.form.r_d == pytest.approx(15.2, abs=0.1)
    assert fit.form.r_n == pytest.approx(5.38, abs=0.05)
    assert 0.2 < fit.agree < 0.6  # other starts end in other minima, nearly as good
    assert len(fit.rivals)
    found = profile(fit, lambda form: form.r_d).interval
    assert found.low < 8
    assert found.high is None or found.high > 100
