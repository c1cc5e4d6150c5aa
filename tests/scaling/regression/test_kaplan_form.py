"""Fits of Kaplan's joint law: exact derivatives, and recovery of known constants."""

import numpy as np
import pytest
from support.fixed_laws import difference_twice

from trainrig.errors import DataError
from trainrig.scaling.laws.law_forms import Kaplan
from trainrig.scaling.laws.runs_table import RunsTable
from trainrig.scaling.regression.bootstrap import Bootstrap, bootstrap_form
from trainrig.scaling.regression.form_fits import _KaplanCurve, fit_kaplan_form
from trainrig.scaling.regression.minimise import Differenced, Squares

TRUTH = Kaplan(n_c=6.4e13, d_c=1.8e13, alpha_n=0.076, alpha_d=0.103)


def make_runs(noise: float, seed: int = 0) -> RunsTable:
    n, d = (v.ravel() for v in np.meshgrid(np.geomspace(1e6, 1e9, 6), np.geomspace(1e8, 1e11, 6)))
    noises = np.exp(noise * np.random.default_rng(seed).normal(size=n.size))
    return RunsTable.of(parameters=n, tokens=d, loss=TRUTH.compute_loss(n, d) * noises)


def test_the_curves_derivatives_are_those_of_its_values() -> None:
    rng = np.random.default_rng(0)
    curve = _KaplanCurve(rng.normal(size=7), rng.normal(size=7))
    theta = np.array([[3.0, 2.0, 0.7, 0.1], [1.0, 2.0, 1.3, 0.2]])
    exact = curve(theta)
    numeric = Differenced(lambda t: curve(t).value)(theta)
    pulls = rng.normal(size=(2, 7))
    assert exact.slope == pytest.approx(numeric.slope, abs=1e-8)
    assert exact.bend(pulls) == pytest.approx(
        difference_twice(lambda t: curve(t).value, theta, pulls), abs=1e-4
    )


def test_the_truth_comes_out_of_losses_without_noise() -> None:
    fit = fit_kaplan_form(make_runs(0))
    assert fit.form.constants == pytest.approx(TRUTH.constants, rel=1e-6)


def test_the_interval_of_noisy_losses_holds_the_truth() -> None:
    fit = fit_kaplan_form(make_runs(0.003), Squares())
    estimates = bootstrap_form(fit, Bootstrap(draws=100)).compute_estimates()
    assert fit.agree > 0.3
    for name, true in TRUTH.constants.items():
        interval = estimates[name].bootstrap
        assert interval is not None and interval.contains(true), name


def test_a_single_size_is_rejected() -> None:
    table = make_runs(0)
    with pytest.raises(DataError, match="Kaplan"):
        fit_kaplan_form(table.select(table.parameters < 2e6))
