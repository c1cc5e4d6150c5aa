"""Estimates of N*(C) without a joint form: parabolas, the envelope, Kaplan's power laws."""

from dataclasses import replace

import numpy as np
import pytest

from trainrig.errors import DataError
from trainrig.scaling.laws.law_forms import Kaplan, Parametric
from trainrig.scaling.laws.runs_table import RunsTable
from trainrig.scaling.regression.approaches import (
    find_frontier,
    fit_approaches,
    fit_envelope_line,
    fit_frontier,
    fit_frontier_laws,
    fit_isoflop_line,
)
from trainrig.scaling.regression.bootstrap import Bootstrap, draw_counts
from trainrig.scaling.regression.hoffmann import (
    Envelope,
    IsoFlop,
    fit_envelope,
    fit_isoflops,
    fit_power,
    group_by_budget,
    interpolate_curves,
    refit_isoflops,
)

# alpha = beta: the curves are symmetric, so the parabolas' only bias is of fourth order.
EVEN = Parametric(E=1.8, A=400, B=1600, alpha=0.35, beta=0.35)
UNEVEN = Parametric(E=1.8, A=482, B=2085, alpha=0.3478, beta=0.3658)


def make_sweep(law: Parametric, centre: float = 1.0, budgets: int = 5, sizes: int = 9) -> RunsTable:
    """Return runs of sizes from 1/4 to 4 times `centre` times the best, at each budget."""
    flops = np.repeat(np.geomspace(1e18, 1e21, budgets), sizes)
    spread = np.tile(np.geomspace(1 / 4, 4, sizes), budgets)
    n = law.compute_optimum(flops).parameters * centre * spread
    d = flops / 6 / n
    return RunsTable.of(parameters=n, tokens=d, loss=law.compute_loss(n, d), budget=flops)


def make_training_runs(law: Parametric, sizes: int = 15) -> RunsTable:
    """Return runs of each size, measured along its training curve."""
    n = np.repeat(np.geomspace(3e7, 3e9, sizes), 40)
    d = n * np.tile(np.geomspace(2, 200, 40), sizes)
    return RunsTable.of(
        parameters=n,
        tokens=d,
        loss=law.compute_loss(n, d),
        trial=[f"{size:g}" for size in n],
        state="along",
    )


# --- isoFLOP parabolas


def test_parabolas_find_the_exponent_and_the_optima_of_symmetric_bowls() -> None:
    fit = fit_isoflops(make_sweep(EVEN))
    assert fit.parameters.exponent == pytest.approx(0.5, abs=1e-6)
    assert fit.tokens.exponent == pytest.approx(0.5, abs=1e-6)
    best = EVEN.compute_optimum([bowl.flops for bowl in fit.bowls])
    assert [bowl.parameters for bowl in fit.bowls] == pytest.approx(best.parameters, rel=1e-6)
    assert [bowl.tokens for bowl in fit.bowls] == pytest.approx(best.tokens, rel=1e-6)
    assert [bowl.loss for bowl in fit.bowls] == pytest.approx(best.loss, rel=2e-3)


def test_parabolas_off_centre_are_biased_and_less_so_with_the_nearest_sizes() -> None:
    skewed = Parametric(E=1.8, A=2e4, B=200, alpha=0.6, beta=0.25)
    runs = make_sweep(skewed, centre=1.6)
    best = skewed.compute_optimum(1e18).parameters
    wide = fit_isoflops(runs, IsoFlop(within=None)).bowls[0].parameters
    near = fit_isoflops(runs, IsoFlop(nearest=5)).bowls[0].parameters
    assert abs(wide / best - 1) > 0.02
    assert abs(near / best - 1) < abs(wide / best - 1) / 2


def test_sizes_far_up_the_bowl_are_left_out_unless_asked_for_and_five_are_kept() -> None:
    """Sizes go up to a hundred times the best one, which would skew the parabola of all of them."""
    skewed = Parametric(E=1.7, A=300, B=6000, alpha=0.30, beta=0.42)
    flops = np.repeat(np.geomspace(1e18, 1e21, 4), 13)
    best = skewed.compute_optimum(flops).parameters
    n = best * np.tile(np.geomspace(1 / 30, 100, 13), 4)
    runs = RunsTable.of(
        parameters=n, tokens=flops / 6 / n, loss=skewed.compute_loss(n, flops / 6 / n), budget=flops
    )

    def off(settings: IsoFlop) -> float:
        bowls = fit_isoflops(runs, settings).bowls
        found = np.array([bowl.parameters for bowl in bowls])
        return float(np.abs(np.log(found / np.unique(best))).max())

    assert off(IsoFlop()) < off(IsoFlop(within=None)) / 3
    assert all(len(bowl.rows) < 13 for bowl in fit_isoflops(runs).bowls)
    assert all(len(bowl.rows) == 5 for bowl in fit_isoflops(runs, IsoFlop(within=1e-6)).bowls)
    assert fit_isoflops(runs, IsoFlop(nearest=7)).bowls[0].rows[0] >= 0


def test_a_budget_without_a_minimum_inside_is_refused_by_name() -> None:
    runs = make_sweep(UNEVEN)
    small = (runs.budget < 2e18) & (runs.parameters > UNEVEN.compute_optimum(1e18).parameters)
    large = (runs.budget > 5e20) & (runs.parameters < UNEVEN.compute_optimum(1e21).parameters)
    fit = fit_isoflops(runs.select(~(small | large)))
    assert len(fit.bowls) == 3
    assert [one.name for one in fit.refused] == ["budget 1e+18", "budget 1e+21"]
    assert "the largest of its" in fit.refused[0].reason
    assert "train larger ones" in fit.refused[0].reason


def test_runs_on_no_budget_are_counted_and_too_few_budgets_refused() -> None:
    runs = make_sweep(UNEVEN, budgets=1)
    with pytest.raises(DataError, match=r"needs 2 budgets .* found 1"):
        fit_isoflops(runs)
    stray = RunsTable.of(parameters=[1e7, 2e7], tokens=[1e9, 1e9], loss=[3.0, 3.0])
    with pytest.raises(DataError, match=r"2 runs.*fewer than 4 sizes"):
        fit_isoflops(stray)


def test_budgets_are_found_where_none_are_named() -> None:
    runs = make_sweep(UNEVEN)
    wobble = np.exp(np.random.default_rng(0).uniform(-0.1, 0.1, len(runs)))
    unnamed = RunsTable.of(parameters=runs.parameters, tokens=runs.tokens * wobble, loss=runs.loss)
    found = group_by_budget(unnamed)
    assert [len(rows) for rows in found] == [9] * 5
    assert all(len(set(runs.budget[rows])) == 1 for rows in found)


# --- the envelope of training curves


def test_the_envelope_finds_the_exponents_of_a_fine_ladder() -> None:
    fit = fit_envelope(make_training_runs(UNEVEN, sizes=40))
    assert fit.parameters.exponent == pytest.approx(UNEVEN.parameters_exponent, abs=0.01)
    assert fit.parameters.exponent + fit.tokens.exponent == pytest.approx(1)
    at = UNEVEN.compute_optimum(1e20)
    assert fit.parameters(1e20) == pytest.approx(at.parameters, rel=0.05)
    assert [one.reason.split(",")[0] for one in fit.refused] == [
        "the smallest size",
        "the largest size",
    ]


def test_single_runs_of_one_size_make_a_curve() -> None:
    runs = make_training_runs(UNEVEN)
    alone = RunsTable.of(parameters=runs.parameters, tokens=runs.tokens, loss=runs.loss)
    one = fit_envelope(runs)
    other = fit_envelope(alone)
    assert other.parameters.exponent == pytest.approx(one.parameters.exponent, abs=1e-9)


def test_curves_are_read_between_their_points_and_never_rise() -> None:
    runs = RunsTable.of(parameters=1e6, tokens=[1e8, 1e9, 1e10], loss=[4.0, 5.0, 3.0], trial="one")
    drawn = interpolate_curves(runs, Envelope(points=11))
    assert drawn.loss.shape == (1, 11)
    assert drawn.loss[0, [0, 5, 10]] == pytest.approx([4, 4, 3])
    assert (np.diff(drawn.loss[0]) <= 1e-12).all()


def test_an_envelope_of_few_sizes_or_of_single_points_is_refused() -> None:
    with pytest.raises(DataError, match=r"of 4 sizes, 2 between .* a line needs 3"):
        fit_envelope(make_training_runs(UNEVEN, sizes=4))
    n = np.geomspace(1e6, 1e9, 8)
    with pytest.raises(DataError, match="needs losses along the runs"):
        fit_envelope(RunsTable.of(parameters=n, tokens=20 * n, loss=3.0))


# --- power laws of one variable


def test_a_power_law_is_the_line_of_its_logarithms() -> None:
    law = fit_power(np.array([1e3, 1e6, 1e9]), 5 * np.array([1e3, 1e6, 1e9]) ** -0.5)
    assert (law.coefficient, law.exponent) == pytest.approx((5, -0.5))
    assert law.scale == pytest.approx(25)
    assert law(1e4) == pytest.approx(0.05)
    with pytest.raises(DataError, match="two different values"):
        fit_power(np.array([10.0, 10.0]), np.array([1.0, 2.0]))


def test_the_frontier_is_what_no_smaller_run_beats() -> None:
    x = np.array([1.0, 1, 2, 3, 4])
    loss = np.array([5.0, 4, 4.5, 3, 2])
    assert find_frontier(x, loss).tolist() == [1, 3, 4]


def test_kaplans_laws_come_out_where_nothing_else_binds() -> None:
    law = Kaplan(n_c=8.8e13, d_c=5.4e13, alpha_n=0.076, alpha_d=0.095)
    sizes = np.geomspace(1e6, 1e9, 7)
    ample = RunsTable.of(parameters=sizes, tokens=1e18, loss=law.compute_loss(sizes, 1e18))
    assert fit_frontier(ample, "parameters") == pytest.approx((0.076, 8.8e13), rel=1e-3)
    huge = RunsTable.of(
        parameters=1e18, tokens=sizes * 100, loss=law.compute_loss(1e18, sizes * 100)
    )
    assert fit_frontier(huge, "tokens") == pytest.approx((0.095, 5.4e13), rel=1e-2)


def test_kaplans_laws_of_a_sweep_imply_an_exponent() -> None:
    """N* ~ C^a with a = alpha_C / alpha_N (Kaplan et al., section 6.1)."""
    runs = make_training_runs(UNEVEN)
    assert 0.3 < fit_frontier(runs, "flops")[0] / fit_frontier(runs, "parameters")[0] < 0.9
    with pytest.raises(DataError, match=r"L\(parameters\): 1 of 3 runs .* train 2 more"):
        fit_frontier(
            RunsTable.of(parameters=[1.0, 2, 3], tokens=1e6, loss=[1.0, 2, 3]), "parameters"
        )


# --- intervals


def add_noise(runs: RunsTable, seed: int, noise: float = 0.003) -> RunsTable:
    scatter = np.random.default_rng(seed).normal(size=len(runs))
    return replace(runs, loss=runs.loss * np.exp(noise * scatter))


def test_redrawn_parabolas_are_those_of_the_rows_drawn() -> None:
    runs = add_noise(make_sweep(UNEVEN), 0)
    fit = fit_isoflops(runs)
    counts = draw_counts(runs, Bootstrap(draws=20), strata=runs.budget)
    for count, found in zip(counts, refit_isoflops(fit, runs, counts), strict=True):
        drawn = fit_isoflops(runs.select(np.repeat(np.arange(len(runs)), count)))
        law = drawn.parameters
        if len(drawn.bowls) == len(fit.bowls):
            assert found == pytest.approx([np.log(law.coefficient), law.exponent], rel=1e-6)


def test_a_draw_without_two_bowls_has_no_line() -> None:
    runs = make_sweep(UNEVEN, budgets=2)
    counts = np.ones((2, len(runs)), dtype=np.int64)
    counts[1, 11:] = 0  # the second budget keeps two sizes
    found = refit_isoflops(fit_isoflops(runs), runs, counts)
    assert np.isnan(found).any(axis=1).tolist() == [False, True]


def test_a_draw_whose_parabolas_are_hills_has_no_line() -> None:
    runs = make_sweep(UNEVEN)
    hills = replace(runs, loss=10 - runs.loss)
    counts = np.ones((1, len(runs)), dtype=np.int64)
    assert np.isnan(refit_isoflops(fit_isoflops(runs), hills, counts)).all()


def test_each_approach_speaks_or_says_why_not() -> None:
    rules = Bootstrap(draws=40)
    swept = add_noise(make_sweep(UNEVEN), 1)
    envelope, isoflop = fit_approaches(swept, swept, IsoFlop(), Envelope(), rules)
    assert isoflop.parameters_exponent is not None
    assert isoflop.tokens_exponent is not None
    interval = isoflop.parameters_exponent.bootstrap
    assert interval is not None and interval.contains(UNEVEN.parameters_exponent)
    total = isoflop.parameters_exponent.value + isoflop.tokens_exponent.value
    assert total == pytest.approx(1)
    assert envelope.parameters_exponent is not None
    assert envelope.parameters_exponent.bootstrap is None
    assert "of 40 bootstrap draws have no fit" in envelope.note
    few = swept.select(swept.budget < 2e18)
    refused = fit_approaches(few, few, IsoFlop(), Envelope(), rules)
    assert [one.parameters_exponent for one in refused] == [None, None]
    assert refused[1].note.startswith("refused: isoFLOP curves: a line needs 2 budgets")

    along = add_noise(make_training_runs(UNEVEN), 1)
    envelope, isoflop = fit_approaches(along, along, IsoFlop(), Envelope(), rules)
    assert envelope.parameters_exponent is not None
    assert "precede the decay of the learning rate" in envelope.note


def test_kaplans_laws_come_with_intervals() -> None:
    runs = add_noise(make_training_runs(UNEVEN), 2)
    estimates = fit_frontier_laws(runs, Bootstrap(draws=40))
    assert estimates["L(C).alpha"].value == fit_frontier(runs, "flops")[0]
    for estimate in estimates.values():
        assert estimate.bootstrap is not None and estimate.bootstrap.contains(estimate.value)


# The long version, 200 sweeps of 200 draws, is in test_coverage_of_approaches.py.
@pytest.mark.parametrize("approach", ["isoflop", "envelope"])
def test_intervals_hold_the_truth_about_as_often_as_they_say(approach: str) -> None:
    sweeps = 20 if approach == "isoflop" else 6
    assert measure_coverage(approach, sweeps, draws=60) >= 0.8


def measure_coverage(approach: str, sweeps: int, draws: int) -> float:
    """Return the share of `sweeps` whose 95% interval of N*'s exponent holds the truth."""
    held = []
    for seed in range(sweeps):
        rules = Bootstrap(draws=draws, seed=seed)
        if approach == "isoflop":
            line, _ = fit_isoflop_line(add_noise(make_sweep(UNEVEN), seed), IsoFlop(), rules)
        else:
            line, _ = fit_envelope_line(
                add_noise(make_training_runs(UNEVEN, 20), seed), Envelope(), rules
            )
        interval = line.build_approach(approach, "").parameters_exponent
        assert interval is not None and interval.bootstrap is not None
        held.append(interval.bootstrap.contains(UNEVEN.parameters_exponent))
    return float(np.mean(held))
