import os
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import minimize

from trainrig.errors import DataError
from trainrig.scaling.laws.law_forms import Parametric
from trainrig.scaling.laws.runs_files import read_table
from trainrig.scaling.laws.runs_table import RunsTable
from trainrig.scaling.regression.form_fits import fit_parametric
from trainrig.scaling.regression.minimise import Huber, Lad, Squares

TRUTH = Parametric(E=1.82, A=478.0, B=2143.0, alpha=0.347, beta=0.367)
HOFFMANN = Parametric(E=1.69, A=406.4, B=410.7, alpha=0.34, beta=0.28)
# Enough starts for simple sweeps.
fit_quick = partial(fit_parametric, exponents=(0.2, 0.5), floors=(0.5, 0.9))
REAL = os.environ.get("TRAINRIG_TEST_DATA")

real = [
    pytest.mark.data,
    pytest.mark.skipif(not REAL, reason="TRAINRIG_TEST_DATA names no folder with real data"),
]


@cache
def read_chinchilla(rows=240):
    """Return the points of arXiv:2404.10102 without the highest losses."""
    runs = read_table(str(Path(REAL, "scaling", "chinchilla_extracted.csv")))
    return runs.select(runs.loss <= np.sort(runs.loss)[rows - 1])


def make_sweep(noise=0.0, seed=0, sizes=8, lengths=8):
    """Return a grid of runs of a known law, with D/N from about 2 to 100."""
    parameters = np.repeat(np.geomspace(1e7, 1e9, sizes), lengths)
    tokens = parameters * np.tile(np.geomspace(2, 100, lengths), sizes)
    errors = noise * np.random.default_rng(seed).normal(size=len(parameters))
    loss = TRUTH.compute_loss(parameters, tokens) * np.exp(errors)
    return RunsTable.of(parameters=parameters, tokens=tokens, loss=loss)


def list_constants(form):
    return [form.A, form.B, form.E, form.alpha, form.beta]


@pytest.mark.parametrize("loss", [Huber(), Lad(), Squares()])
def test_runs_without_noise_give_their_law_back(loss):
    fit = fit_quick(make_sweep(), loss)
    assert list_constants(fit.form) == pytest.approx(list_constants(TRUTH), rel=1e-6)
    assert np.abs(fit.residuals).max() < 1e-9


def test_the_record_proves_the_minimum():
    fit = fit_parametric(make_sweep(noise=0.01))
    record = fit.build_record()
    assert (record.loss, record.delta) == ("Huber", 1e-3)
    assert record.gradient_norm < 1e-7 * record.objective  # 7e-12 of 4e-4
    assert record.starts == 100
    assert record.starts_that_agree > 0.9
    assert record.rows_used == 64
    assert fit_parametric(make_sweep(noise=0.01)).build_record() == record


def test_the_objective_is_the_sum_over_runs():
    fit = fit_quick(make_sweep(noise=0.01))
    r = np.abs(fit.residuals)
    assert fit.objective == pytest.approx(np.where(r < 1e-3, r**2 / 2, 1e-3 * (r - 5e-4)).sum())
    lad = fit_quick(make_sweep(noise=0.01), Lad())
    assert lad.objective == pytest.approx(np.abs(lad.residuals).sum())
    assert lad.objective <= np.abs(fit.residuals).sum()


def test_each_run_twice_is_twice_the_objective_and_the_same_law():
    runs = make_sweep(noise=0.01)
    once = fit_quick(runs)
    twice = fit_quick(runs.select(np.tile(np.arange(len(runs)), 2)))
    assert list_constants(twice.form) == pytest.approx(list_constants(once.form), rel=1e-7)
    assert twice.objective == pytest.approx(2 * once.objective)


def test_the_units_of_size_change_nothing_but_the_constants():
    runs = make_sweep(noise=0.01)
    other = RunsTable.of(parameters=runs.parameters / 1e6, tokens=runs.tokens / 1e9, loss=runs.loss)
    one = fit_quick(runs)
    two = fit_quick(other)
    assert two.objective == pytest.approx(one.objective, rel=1e-9)
    assert pytest.approx(one.form.A / 1e6**one.form.alpha, rel=1e-6) == two.form.A


class Trap:
    """The objective with the usual minimiser: L-BFGS-B at scipy's default tolerances."""

    def __init__(self, runs):
        log_n = np.log(runs.parameters)
        log_d = np.log(runs.tokens)
        one = np.ones_like(log_n)
        zero = np.zeros_like(log_n)
        self.designs = np.array(
            [
                [one, zero, zero, -log_n, zero],
                [zero, one, zero, zero, -log_d],
                [zero, zero, one, zero, zero],
            ]
        ).transpose(0, 2, 1)
        self.log_loss = np.log(runs.loss)

    def summed(self, theta):
        logs = self.designs @ theta
        total = np.logaddexp.reduce(logs)
        residual = total - self.log_loss
        capped = np.clip(residual, -1e-3, 1e-3)
        slope = np.einsum("jr,jrp->rp", np.exp(logs - total), self.designs)
        return (capped * (residual - capped / 2)).sum(), capped @ slope

    def stopped_at(self, form, scale, gradient=False):
        start = [np.log(form.A), np.log(form.B), np.log(form.E), form.alpha, form.beta]

        def objective(theta):
            value, slope = self.summed(theta)
            return (scale * value, scale * slope) if gradient else scale * value

        found = minimize(objective, start, jac=gradient, method="L-BFGS-B")
        a, b, e, alpha, beta = found.x
        return [np.exp(a), np.exp(b), np.exp(e), alpha, beta], self.summed(found.x)[0]


def test_a_mean_under_default_tolerances_stops_early_and_ours_does_not():
    runs = make_sweep(noise=0.01, seed=1)
    best = fit_quick(runs)
    _, stopped = Trap(runs).stopped_at(HOFFMANN, scale=1 / len(runs))
    assert stopped > best.objective * 1.02
    regression = best.regression
    ones = np.ones((1, len(runs)))
    for scale in (1 / len(runs), 1e-9, 1e6):
        found = regression.find_minima(regression.starts[-1:], scale * ones)
        assert found.theta[0] == pytest.approx(best.theta, rel=1e-5)


class TestChinchilla:
    pytestmark = real

    def test_huber_minimum(self):
        fit = fit_parametric(read_chinchilla())
        expected = [477.826, 2143.417, 1.81722, 0.34731, 0.36717]
        assert list_constants(fit.form) == pytest.approx(expected, rel=1e-5)
        assert fit.objective == pytest.approx(0.0010182740178, rel=1e-9)
        assert np.linalg.norm(fit.minimum.gradient) < 1e-9
        assert fit.agree > 0.9

    def test_least_absolute_deviations_are_what_was_published(self):
        fit = fit_parametric(read_chinchilla(), loss=Lad())
        published = [482.01, 2085.43, 1.8172, 0.3478, 0.3658]
        assert list_constants(fit.form) == pytest.approx(published, rel=2e-4)  # the paper rounds E
        assert list_constants(fit.form)[:2] == pytest.approx(published[:2], rel=2e-5)
        assert fit.build_record().loss == "Lad"

    def test_five_outliers_pull(self):
        fit = fit_parametric(read_chinchilla(245))
        expected = [495.73, 12845.6, 1.89134, 0.34931, 0.45305]
        assert list_constants(fit.form) == pytest.approx(expected, rel=1e-5)
        assert fit.objective == pytest.approx(0.00182601, rel=1e-5)

    def test_the_trap_of_an_early_stop(self):
        """The sum at default tolerances hardly moves from the paper's own constants."""
        found, stopped = Trap(read_chinchilla()).stopped_at(HOFFMANN, scale=1)
        assert found == pytest.approx([406.39, 410.72, 1.698, 0.3387, 0.2853], rel=1e-3)
        assert stopped == pytest.approx(0.00116327, rel=1e-4)
        assert stopped > 0.0010182740178 * 1.14

    def test_the_trap_of_a_mean(self):
        """The best of 32 of the paper's starts, all declared converged, is far from the minimum."""
        trap = Trap(read_chinchilla())
        starts = [
            Parametric(E=np.exp(e), A=np.exp(a), B=np.exp(b), alpha=alpha, beta=beta)
            for a in (5, 10)
            for b in (5, 10)
            for e in (-0.5, 0.5)
            for alpha in (0.5, 1.0)
            for beta in (0.5, 1.0)
        ]
        ends = [trap.stopped_at(start, scale=1 / 240, gradient=True) for start in starts]
        found, stopped = min(ends, key=lambda end: end[1])
        assert found == pytest.approx([150.26, 15030.0, 1.78406, 0.2772, 0.46189], rel=1e-3)
        assert stopped > 0.0010182740178 * 1.2


@pytest.mark.parametrize(
    ("parameters", "tokens", "message"),
    [
        ([1e7, 1e8], [1e9, 1e10], r"2 runs with 2 sizes and 2 token counts: Parametric has 5"),
        ([1e7, 1e8], [1e9, 1e10], r"needs 6 runs, 3 sizes and 3 token.*4"),
        ([1e8] * 8, np.geomspace(1e8, 1e10, 8), r"least 2, of N from 2.5e\+07.*4e\+08"),
        (np.geomspace(1e7, 1e9, 8), [1e9] * 8, r"least 2, with D from 2.5e\+08.*4e\+09"),
        (np.geomspace(1e7, 1e9, 9), np.geomspace(2e8, 2e10, 9), r"lie at one ratio D/N = 20 "),
        (np.geomspace(1e7, 1e9, 9), np.geomspace(1e9, 1e7, 9), r"one budget of 6e\+16 FLOPs"),
        (np.geomspace(1e7, 1e9, 9), np.geomspace(1e9, 1e10, 9), r"on one line D ~ N\^0.50"),
    ],
)
def test_runs_that_cannot_tell_the_constants_are_refused(parameters, tokens, message):
    runs = RunsTable.of(
        parameters=parameters, tokens=tokens, loss=TRUTH.compute_loss(parameters, tokens)
    )
    with pytest.raises(DataError, match=message) as refused:
        fit_parametric(runs)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("column", "value"), [("loss", np.nan), ("tokens", 0), ("loss", np.inf)])
def test_numbers_that_are_none_are_refused_by_name(column, value):
    runs = make_sweep()
    getattr(runs, column)[3] = value
    with pytest.raises(DataError, match=rf"row 4: {column} is {value:g}; a law needs positive"):
        fit_parametric(runs)


def test_losses_that_do_not_bend_have_no_fit():
    runs = make_sweep()
    rising = RunsTable.of(
        parameters=runs.parameters, tokens=runs.tokens, loss=1 + 1e-10 * runs.parameters
    )
    with pytest.raises(DataError, match="none of 100 starts"):
        fit_parametric(rising)
