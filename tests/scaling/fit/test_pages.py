"""Pages of a fit and of a plan: they show the results, and warnings come first."""

from functools import cache

import numpy as np
import pytest

from trainrig import hardware
from trainrig.scaling.fit.fit_page import build_fit_page, write_fit_page
from trainrig.scaling.fit.law_fit import Fitted, LawFit, fit_law
from trainrig.scaling.fit.law_summary import find_grave_warnings, find_warnings
from trainrig.scaling.law_plots import compute_band, format_power
from trainrig.scaling.laws.law import Approach, Interval, IntervalEstimate, LeftOut
from trainrig.scaling.laws.law_formats import format_interval
from trainrig.scaling.laws.law_forms import Parametric
from trainrig.scaling.laws.published_laws import find_published_law
from trainrig.scaling.laws.runs_table import RunsTable
from trainrig.scaling.plan.plan_page import build_plan_page
from trainrig.scaling.plan.plan_schema import PlanRequest
from trainrig.scaling.plan.planner import make_plan
from trainrig.scaling.regression.bootstrap import Bootstrap

TRUE = Parametric(E=1.8, A=482.0, B=2085.0, alpha=0.348, beta=0.366)


@cache
def fit_example() -> Fitted:
    flops, sizes = np.meshgrid(np.geomspace(1e18, 1e20, 4), np.geomspace(0.25, 4, 6))
    sizes = (sizes * TRUE.compute_optimum(flops).parameters).ravel()
    tokens = flops.ravel() / 6 / sizes
    noise = np.exp(np.random.default_rng(0).normal(0, 0.002, len(sizes)))
    runs = RunsTable.of(
        parameters=sizes,
        tokens=tokens,
        loss=TRUE.compute_loss(sizes, tokens) * noise,
        budget=flops.ravel(),
        tokenizer="words",
        recipe="<web & code>",
    )
    return fit_law(
        runs, LawFit(form="Parametric", bootstrap=Bootstrap(draws=60)), "a <law>", "runs.csv"
    )


@pytest.mark.slow
def test_the_page_of_a_fit_says_what_the_law_says(tmp_path):
    found = fit_example()
    path = write_fit_page(str(tmp_path), found)
    page = (tmp_path / "report.html").read_text()
    assert path.endswith("report.html")
    assert page.count("<svg") == 13  # agreement, 2 residuals, 2 optima, contours, bowls, 6 profiles
    assert "a &lt;law&gt;" in page and "<law>" not in page
    assert f"{found.law.estimates['E'].value:.5g}" in page
    assert f"trainrig plan {tmp_path}/law.json --flops 1.0e21" in page
    assert "Budgets with a minimum between their sizes: 4" in page
    assert build_fit_page(found, str(tmp_path)) == page


def test_a_band_holds_the_middle_of_the_draws():
    law = fit_example().law
    flops = np.array([1e20, 1e22])
    found = compute_band(law, flops, lambda best: best.parameters)
    drawn = [form.compute_optimum(1e22).parameters for form in law.draws]
    assert found.low is not None and found.high is not None
    assert [found.low[1], found.high[1]] == pytest.approx(np.quantile(drawn, (0.025, 0.975)))
    assert (
        compute_band(find_published_law("besiroglu"), flops, lambda best: best.tokens).low is None
    )


def change_example(**changes):
    return fit_example().law.model_copy(update=changes)


def test_each_doubt_is_said():
    sure = change_example(approaches=(), compared=())
    record = sure.fit
    assert record is not None
    open_end = IntervalEstimate(value=0.3, profile=Interval(low=0.1, high=None))
    far = Interval(low=0.1, high=0.2)
    apart = Approach(
        name="isoflop",
        parameters_exponent=IntervalEstimate(value=0.15, bootstrap=far),
        tokens_exponent=None,
    )
    said = {
        "do not bound beta": change_example(estimates={"beta": open_end}),
        "20% of": change_example(fit=record.model_copy(update={"starts_that_agree": 0.2})),
        "did not converge": change_example(fit=record.model_copy(update={"gradient_norm": 0.1})),
        "draws have no fit": change_example(fit=record.model_copy(update={"draws_failed": 30})),
        "No runs were held out": change_example(held_out=None),
        "by the isoflop approach": change_example(approaches=(apart,)),
    }
    for doubt, law in said.items():
        assert any(doubt in line for line in find_grave_warnings(law)), doubt
        assert not any(doubt in line for line in find_grave_warnings(sure)), doubt
    left_out = record.model_copy(update={"rows_left_out": (LeftOut(name="x", reason="NaN"),)})
    assert find_grave_warnings(change_example(fit=left_out)) == find_grave_warnings(
        fit_example().law
    )
    assert "Left out by rule: 1 of" in find_warnings(change_example(fit=left_out))[-1]


def test_the_page_of_a_plan_says_what_the_plan_says():
    law = find_published_law("besiroglu")
    plan = make_plan(
        law, PlanRequest(flops=1e21, tokens_served=1e12, tokens_available=1e10), hardware.load()
    )
    page = build_plan_page(plan, law, "run.toml")
    assert page.count("<svg") == 4  # contours, trajectory, served, epochs
    assert f"{plan.loss:.4f}" in page
    assert "trainrig pretrain run.toml" in page
    assert all(warning[:40] in page.replace("&#x27;", "'") for warning in plan.warnings)
    alone = make_plan(law, PlanRequest(flops=1e21), hardware.load())
    assert build_plan_page(alone, law, "run.toml").count("<svg") == 2


def test_numbers_are_spelt_as_people_write_them():
    assert (format_power(1.3e23), format_power(5.0)) == ("1.3e23", "5.0e0")
    assert format_interval(Interval(low=None, high=0.55)) == "[unbounded below, 0.55]"
    assert format_interval(None) == "–"
