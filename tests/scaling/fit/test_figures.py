"""Numbers on a page, which equal the terminal's and the JSON's to the same digits."""

import html
import re
from typing import Any

import pytest

from trainrig import hardware
from trainrig.scaling.fit.fit_page import build_fit_page
from trainrig.scaling.fit.law_fit import Fitted, LawFit, fit_law
from trainrig.scaling.fit.law_summary import describe_law
from trainrig.scaling.law_plots import compute_band
from trainrig.scaling.laws.law import Law
from trainrig.scaling.laws.law_formats import format_count, format_usd
from trainrig.scaling.laws.law_forms import Parametric
from trainrig.scaling.laws.published_laws import find_published_law
from trainrig.scaling.laws.runs_table import RunsTable
from trainrig.scaling.plan.loss_prediction import predict_loss
from trainrig.scaling.plan.plan_page import build_plan_page
from trainrig.scaling.plan.plan_schema import PlanRequest
from trainrig.scaling.plan.plan_text import describe_plan
from trainrig.scaling.plan.planner import make_plan
from trainrig.scaling.regression.bootstrap import Bootstrap

TRUE = Parametric(E=1.8, A=482.0, B=2085.0, alpha=0.348, beta=0.366)


def make_drawn_law(failed: int = 0) -> Law:
    """Return a law with bootstrap draws, and `failed` more draws without a fit."""
    law = find_published_law("besiroglu")
    assert isinstance(law.form, Parametric)
    draws = tuple(law.form.with_constants({"E": law.form.E + (k - 50) / 1000}) for k in range(101))
    fit = fit_example().law.fit
    assert fit is not None
    record = fit.model_copy(update={"draws_failed": failed})
    return law.model_copy(update={"draws": draws, "fit": record})


_FITTED: list[Fitted] = []


def fit_example() -> Fitted:
    if not _FITTED:
        grid = [(n, d) for n in (1e7, 3e7, 1e8, 3e8, 1e9) for d in (1e9, 3e9, 1e10, 3e10, 1e11)]
        n, d = zip(*grid, strict=True)
        noise = [1 + 0.003 * ((7 * i) % 11 - 5) / 5 for i in range(len(grid))]
        loss = [
            float(TRUE.compute_loss(*point)) * by for point, by in zip(grid, noise, strict=True)
        ]
        loss[-1] *= 1.3  # an outlier, which is listed
        runs = RunsTable.of(parameters=n, tokens=d, loss=loss, tokenizer="words")
        _FITTED.append(fit_law(runs, LawFit(bootstrap=Bootstrap(draws=60)), "web", "runs.csv"))
    return _FITTED[0]


def extract_text(page: str) -> str:
    """Return the text of a page without markup and drawings."""
    page = re.sub(r"<(svg|style).*?</\1>", " ", page, flags=re.DOTALL)
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", page)))


@pytest.mark.slow
@pytest.mark.parametrize(
    "asked",
    [
        {"flops": 1e21},
        # A cost of cents, which an earlier page printed as 0 USD.
        {"flops": 5e16, "extrapolate": True},
        {"flops": 1e21, "tokens_available": 1e10},
        {"flops": 1e21, "tokens_served": 1e12},
    ],
)
def test_every_figure_of_the_plan_on_the_page_is_that_of_the_terminal(
    asked: dict[str, Any],
) -> None:
    law = make_drawn_law()
    plan = make_plan(law, PlanRequest(**asked), hardware.load())
    page = extract_text(build_plan_page(plan, law, "run.toml"))
    terminal = "\n".join(describe_plan(plan))
    size = plan.size
    cost = plan.cost
    assert cost.usd is not None and plan.loss_interval is not None
    figures = [
        f"{plan.loss:.4f}",
        str(plan.loss_interval),
        format_count(size.parameters),
        format_count(size.tokens),
        f"{size.tokens_per_parameter:.3g}",
        f"{size.flops:.3e}",
        f"{size.flops_6nd:.3e}",
        f"{size.non_embedding:,}",
        f"{size.embedding:,}",
        format_usd(cost.usd),
        f"{cost.kwh:,.4g}",
        f"{cost.device_days:,.4g} device days",
        f"{cost.hours:,.4g} h",
        f"{plan.recipe.rate:.2g}",
        f"{plan.recipe.steps:,}",
        f"{plan.saving.every:,} steps",
        *(
            f"{count / 2**30:,.1f}"
            for row in plan.placement.table
            for count in row.bytes_by_recompute.values()
        ),
    ]
    if plan.data:
        figures += [
            format_count(plan.data.worth),
            format_count(plan.data.wall),
            f"{plan.data.epochs:.3g}",
        ]
    if plan.service:
        figures += [f"{plan.service.saved:.2%}", format_count(plan.service.tokens_served)]
    for figure in figures:
        assert figure in terminal, figure
        assert figure in page, figure
    for of in (plan.loss_interval, size.parameters_interval, size.tokens_interval):
        assert of is None or (of.low is not None and of.high is not None and of.low <= of.high)
    assert plan.loss_interval.contains(plan.loss)


def test_money_below_a_cent_is_not_nothing() -> None:
    assert [format_usd(usd) for usd in (9999.916, 0.13, 0.0042, 0.0)] == [
        "9,999.92", "0.13", "0.0042", "0.00",
    ]  # fmt: skip


@pytest.mark.slow
def test_every_figure_of_a_fit_on_the_page_is_that_of_the_terminal() -> None:
    law = fit_example().law
    page = extract_text(build_fit_page(fit_example(), "law"))
    terminal = "\n".join(describe_law(law))
    assert law.fit is not None and law.held_out is not None and law.ranges is not None
    figures = [
        law.choice,
        f"{law.held_out.mean_absolute_error:.2%}",
        f"{law.held_out.worst_absolute_error:.2%}",
        f"{law.fit.objective:.6g}",
        f"{law.fit.gradient_norm:.1e}",
        f"{law.fit.starts_that_agree:.0%} of {law.fit.starts} starts agree",
    ]
    for span in (law.ranges.parameters, law.ranges.tokens, law.ranges.flops):
        figures += [f"{span.least:.3g}", f"{span.greatest:.3g}"]
    for estimate in law.estimates.values():
        figures.append(f"{estimate.value:.5g}")
        for interval in (estimate.bootstrap, estimate.profile):
            ends = [] if interval is None else [interval.low, interval.high]
            figures += [f"{end:.4g}" for end in ends if end is not None]
    for form in law.compared:
        figures += [f"{form.objective:.6g}", f"{form.held_out_error:.2%}"]
    for row in law.held_out.rows:
        figures += [
            f"{row.loss:.4f}",
            f"{row.predicted:.4f}",
            str(row.interval),
            f"{row.error:+.2%}",
        ]
    figures += [left_out.reason for left_out in law.fit.rows_left_out]
    assert any("outlier" in figure for figure in figures)
    for figure in figures:
        assert figure in terminal, figure
        assert figure in page, figure


def test_draws_that_give_fit_no_interval_give_none_to_plan_predict_or_a_page() -> None:
    few = make_drawn_law(failed=11)  # of 112 draws, 10%
    many = make_drawn_law(failed=12)  # of 113 draws, more than 10%
    assert few.no_interval == ""
    plan = make_plan(few, PlanRequest(flops=1e21), hardware.load())
    assert plan.loss_interval is not None
    why = "12 of 113 bootstrap draws have no fit, so an interval of the others would be biased"
    refused = make_plan(many, PlanRequest(flops=1e21), hardware.load())
    assert refused.loss_interval is None and refused.size.parameters_interval is None
    assert all(point.low is None for point in refused.curve)
    assert why in "\n".join(describe_plan(refused))
    assert why in extract_text(build_plan_page(refused, many, "run.toml"))
    assert predict_loss(many, 1e9, 2e10).loss_interval is None
    assert predict_loss(many, 1e9, 2e10).no_interval.startswith(why)
    flops = TRUE.compute_optimum(1e20).parameters[None]
    assert compute_band(many, flops, lambda best: best.parameters).low is None
