from functools import partial

import numpy as np
import pytest
from scipy.optimize import minimize

from trainrig.scaling.laws.law_forms import Parametric
from trainrig.scaling.laws.runs_table import RunsTable
from trainrig.scaling.regression.bootstrap import Bootstrap, bootstrap_form
from trainrig.scaling.regression.form_fits import fit_parametric
from trainrig.scaling.regression.minimise import Huber, Lad, Squares
from trainrig.scaling.regression.profile_likelihood import profile, with_profiles

# Enough starts for simple sweeps.
fit_quick = partial(fit_parametric, exponents=(0.2, 0.5), floors=(0.5, 0.9))
TRUTH = Parametric(E=1.82, A=478.0, B=2143.0, alpha=0.347, beta=0.367)


def get_exponent(form):
    return form.parameters_exponent


def make_sweep(noise=0.01, seed=0, ratio=50, **more):
    parameters = np.repeat(np.geomspace(1e7, 1e9, 8), 8)
    tokens = parameters * np.tile(np.geomspace(100 / ratio, 100, 8), 8)
    errors = noise * np.random.default_rng(seed).normal(size=64)
    loss = TRUTH.compute_loss(parameters, tokens) * np.exp(errors)
    return RunsTable.of(parameters=parameters, tokens=tokens, loss=loss, **more)


def test_least_squares_profile_of_a_constant_is_the_refit_with_it_held():
    fit = fit_quick(make_sweep(), Squares())
    found = profile(fit, lambda form: form.alpha)
    held = found.values[2]

    def objective(rest):
        theta = np.insert(rest, 3, held)  # alpha is the fourth coordinate
        value = fit.regression.curve(theta[None]).value[0]
        return 0.5 * ((value - fit.regression.log_loss) ** 2).sum()

    start = np.delete(fit.theta, 3)
    best = minimize(
        objective,
        start,
        method="Nelder-Mead",
        options={"maxiter": 20000, "xatol": 1e-10, "fatol": 1e-16},
    )
    rise = (best.fun - fit.objective) * 2 / (fit.residuals @ fit.residuals / 59)
    # Tau may come from the sandwich estimator.
    assert found.rises[2] == pytest.approx(rise, rel=0.35)
    assert found.rises[2] <= rise * 1.001


def test_runs_without_noise_leave_their_constants_in_no_doubt():
    parameters, tokens = (v.ravel() for v in np.meshgrid([1e7, 1e8, 1e9], [1e9, 1e10, 1e11]))
    kept = [0, 1, 2, 3, 4, 6, 8]
    parameters = parameters[kept]
    tokens = tokens[kept]
    loss = TRUTH.compute_loss(parameters, tokens)
    fit = fit_quick(RunsTable.of(parameters=parameters, tokens=tokens, loss=loss))
    for name, true in TRUTH.constants.items():
        found = profile(fit, lambda form, name=name: form.constants[name])
        assert found.interval.low == pytest.approx(true, rel=1e-4)
        assert found.interval.high == pytest.approx(true, rel=1e-4)


def test_profile_and_bootstrap_tell_much_the_same_of_a_good_sweep():
    fit = fit_quick(make_sweep())
    found = {"alpha": profile(fit, lambda form: form.alpha), "a": profile(fit, get_exponent)}
    draws = bootstrap_form(fit, Bootstrap(draws=100))
    estimates = with_profiles(draws.compute_estimates({"a": get_exponent}), found)
    assert estimates["beta"].profile is None
    for name in found:
        estimate = estimates[name]
        low = estimate.profile.low
        high = estimate.profile.high
        assert low < estimate.value < high
        widths = np.log(high / low) / np.log(estimate.bootstrap.high / estimate.bootstrap.low)
        assert 0.5 < widths < 2, name


def test_least_absolute_deviations_have_much_the_profile_of_hubers_loss():
    lad, huber = (
        profile(fit_quick(make_sweep(), loss), get_exponent).interval for loss in (Lad(), Huber())
    )
    assert (lad.low, lad.high) == pytest.approx((huber.low, huber.high), rel=0.01)


def test_a_profile_has_its_least_at_the_fit_and_rises_to_both_sides():
    fit = fit_quick(make_sweep())
    found = profile(fit, lambda form: form.compute_optimum(1e22).parameters)
    at = int(np.argmin(found.rises))
    assert found.values[at] == pytest.approx(found.best, rel=1e-6)
    assert (np.diff(found.values) > 0).all()
    assert (np.diff(found.rises[at:]) > 0).all()
    assert (np.diff(found.rises[: at + 1]) < 0).all()
    assert found.interval.contains(float(TRUTH.compute_optimum(1e22).parameters))


def test_a_narrower_level_gives_a_narrower_interval():
    fit = fit_quick(make_sweep())
    wide, narrow = (profile(fit, lambda form: form.beta, level).interval for level in (0.95, 0.5))
    assert wide.low < narrow.low < narrow.high < wide.high


def test_a_quantity_that_the_runs_do_not_bound_is_reported_as_open():
    """The losses of small models on few tokens do not bound the irreducible loss from below."""
    parameters = np.repeat(np.geomspace(1e4, 1e5, 6), 6)
    tokens = np.tile(np.geomspace(1e5, 1e6, 6), 6)
    errors = 0.05 * np.random.default_rng(1).normal(size=36)
    loss = TRUTH.compute_loss(parameters, tokens) * np.exp(errors)
    fit = fit_quick(RunsTable.of(parameters=parameters, tokens=tokens, loss=loss))
    found = profile(fit, lambda form: form.E)
    assert found.interval.low is None
    assert "unbounded below" in str(found.interval)
    assert found.interval.contains(TRUTH.E)


def test_points_of_one_run_that_err_together_widen_the_profile():
    shared = np.exp(0.01 * np.repeat(np.random.default_rng(5).normal(size=8), 8))
    trials = [f"trial {i // 8}" for i in range(64)]
    widths = []
    for more in ({}, {"trial": trials}):
        runs = make_sweep(noise=0.001, **more)
        runs.loss[:] *= shared
        found = profile(fit_quick(runs), lambda form: form.alpha).interval
        widths.append(np.log(found.high / found.low))
    assert widths[1] > 1.3 * widths[0]
