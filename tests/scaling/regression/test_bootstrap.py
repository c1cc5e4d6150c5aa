from functools import partial

import numpy as np
import pytest
from support.refits import make_refit

from trainrig.errors import DataError
from trainrig.scaling.laws.law_forms import Parametric
from trainrig.scaling.laws.runs_table import RunsTable
from trainrig.scaling.regression.bootstrap import Bootstrap, bootstrap, bootstrap_form, draw_counts
from trainrig.scaling.regression.form_fits import (
    fit_overtraining,
    fit_parametric,
)

TRUTH = Parametric(E=1.82, A=478.0, B=2143.0, alpha=0.347, beta=0.367)
# Enough starts for simple sweeps.
fit_quick = partial(fit_parametric, exponents=(0.2, 0.5), floors=(0.5, 0.9))
EXPONENT = {"parameters_exponent": lambda form: form.parameters_exponent}


def make_sweep(noise=0.01, seed=0, trials=None):
    parameters = np.repeat(np.geomspace(1e7, 1e9, 8), 8)
    tokens = parameters * np.tile(np.geomspace(2, 100, 8), 8)
    errors = noise * np.random.default_rng(seed).normal(size=64)
    loss = TRUTH.compute_loss(parameters, tokens) * np.exp(errors)
    more = {} if trials is None else {"trial": trials}
    return RunsTable.of(parameters=parameters, tokens=tokens, loss=loss, **more)


def compute_mean_loss(runs):
    return [float(runs.loss.mean())]


def test_the_same_seed_draws_the_same():
    runs = make_sweep()
    first, again = (draw_counts(runs, Bootstrap(draws=50, seed=3)) for _ in range(2))
    assert (first == again).all()
    assert (draw_counts(runs, Bootstrap(draws=50, seed=4)) != first).any()
    assert (first.sum(1) == 64).all()


def test_a_training_run_is_drawn_whole():
    runs = make_sweep(trials=[f"trial {i // 8}" for i in range(64)])
    counts = draw_counts(runs, Bootstrap(draws=50)).reshape(50, 8, 8)
    assert (counts == counts[:, :, :1]).all()
    apart = draw_counts(runs, Bootstrap(draws=50, resample="rows")).reshape(50, 8, 8)
    assert (apart != apart[:, :, :1]).any()


def test_strata_keep_their_size():
    budgets = np.repeat([1e15, 1e16], 32)
    counts = draw_counts(make_sweep(), Bootstrap(draws=50), strata=budgets)
    assert (counts[:, :32].sum(1) == 32).all()


def test_draws_of_a_mean_spread_as_theory_says():
    runs = make_sweep()
    draws = bootstrap(make_refit(compute_mean_loss, runs, 1), runs, Bootstrap(draws=2000))
    theory = runs.loss.std() / np.sqrt(64)
    assert draws.values.std() == pytest.approx(theory, rel=0.05)
    assert draws.failed == 0


def test_failed_draws_are_counted_and_too_many_are_refused():
    runs = make_sweep()

    def first_row_or_nothing(drawn):
        if runs.name[0] not in drawn.name:
            raise DataError("no first row")
        return compute_mean_loss(drawn)

    draws = bootstrap(make_refit(first_row_or_nothing, runs, 1), runs, Bootstrap(draws=200))
    assert draws.failed == pytest.approx(200 / np.e, rel=0.2)
    with pytest.raises(DataError, match=rf"{draws.failed} of 200 bootstrap draws have no fit"):
        draws.compute_interval(draws.good[:, 0])


def test_weighing_rows_is_fitting_them_again_and_again():
    runs = make_sweep()
    fit = fit_quick(runs)
    counts = draw_counts(runs, Bootstrap(draws=20))[:3]
    for theta, count in zip(fit.refit_draws(counts), counts, strict=True):
        again = fit_quick(runs.select(np.repeat(np.arange(64), count)))
        form = fit.regression.forms(theta)
        assert form.alpha == pytest.approx(again.form.alpha, rel=1e-6)
        assert pytest.approx(again.form.E, rel=1e-6) == form.E


def test_a_forms_draws_are_forms_with_intervals_around_the_estimate():
    draws = bootstrap_form(fit_quick(make_sweep()), Bootstrap(draws=100))
    assert len(draws.forms) + draws.draws.failed == 100
    found = draws.compute_estimates(EXPONENT)
    assert set(found) == {"E", "A", "B", "alpha", "beta", "parameters_exponent"}
    for name, estimate in found.items():
        assert estimate.bootstrap.contains(estimate.value), name
    exponents = [form.parameters_exponent for form in draws.forms]
    interval = found["parameters_exponent"].bootstrap
    assert np.quantile(exponents, 0.025) == pytest.approx(interval.low)
    assert draws.clusters is None


def test_points_of_one_run_that_err_together_widen_the_interval():
    """The eight points of each of eight runs share an error: there are eight errors, not 64."""
    shared = np.repeat(np.random.default_rng(5).normal(size=8), 8)
    runs = make_sweep(noise=0.001, trials=[f"trial {i // 8}" for i in range(64)])
    runs.loss[:] *= np.exp(0.01 * shared)
    fit = fit_quick(runs)
    whole, apart = (
        bootstrap_form(fit, Bootstrap(draws=200, resample=how)) for how in ("trials", "rows")
    )
    assert whole.clusters == 8
    widths = [np.ptp(np.quantile(draws.stacked.alpha, (0.1, 0.9))) for draws in (whole, apart)]
    assert widths[0] > 1.5 * widths[1]


def test_draws_that_show_no_irreducible_loss_keep_the_interval_and_reach_zero():
    """The runs are too small to show E, so many draws have their minimum at E = 0."""
    truth = Parametric(E=0.4, A=30.0, B=60.0, alpha=0.2, beta=0.2)
    n, d = (v.ravel() for v in np.meshgrid(np.geomspace(1e5, 1e7, 4), np.geomspace(1e7, 1e9, 4)))
    noise = np.exp(0.01 * np.random.default_rng(1).normal(size=16))
    runs = RunsTable.of(parameters=n, tokens=d, loss=truth.compute_loss(n, d) * noise)
    draws = bootstrap_form(fit_overtraining(runs), Bootstrap(draws=60))
    assert draws.draws.failed <= 3
    assert np.any(draws.stacked.E == 0)
    interval = draws.compute_estimates()["E"].bootstrap
    assert interval.low < 1e-6 and interval.contains(truth.E)
