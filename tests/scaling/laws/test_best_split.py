"""Best split of compute: measured minima decide N*, and its interval holds every approach."""

import numpy as np
import pytest

from trainrig import hardware
from trainrig.scaling.fit.law_fit import LawFit, fit_law
from trainrig.scaling.laws import best_split
from trainrig.scaling.laws.law import Compared, Law
from trainrig.scaling.laws.law_forms import Kaplan, Parametric
from trainrig.scaling.laws.runs_table import RunsTable
from trainrig.scaling.plan.plan_schema import PlanRequest
from trainrig.scaling.plan.plan_text import describe_plan
from trainrig.scaling.plan.planner import make_plan
from trainrig.scaling.regression.bootstrap import Bootstrap
from trainrig.scaling.regression.foretelling import HoldOut

TRUTH = Parametric(E=1.8, A=30, B=2.2e6, alpha=0.22, beta=0.66)  # N* ~ C^0.75
FAR = 1e20  # 100 times the largest budget


@pytest.fixture(scope="module")
def law() -> Law:
    """Return a law whose form fixes N* ~ C^0.5, of runs whose parabolas say otherwise."""
    flops = np.repeat(np.geomspace(1e16, 1e18, 4), 7)
    n = TRUTH.compute_optimum(flops).parameters * np.tile(np.geomspace(1 / 3, 3, 7), 4)
    d = flops / 6 / n
    noise = np.exp(0.001 * np.random.default_rng(0).normal(size=28))
    loss = TRUTH.compute_loss(n, d) * noise
    runs = RunsTable.of(parameters=n, tokens=d, loss=loss, budget=flops)
    settings = LawFit(form="OverTraining", bootstrap=Bootstrap(draws=30), hold_out=HoldOut(share=0))
    return fit_law(runs, settings, "bent").law


def test_the_best_size_follows_the_minima_and_its_interval_holds_all_approaches(law: Law) -> None:
    true = float(TRUTH.compute_optimum(FAR).parameters)
    found = float(best_split.steer(law).compute_optimum(FAR).parameters)
    assert found == pytest.approx(true, rel=0.2)
    by_form = float(law.form.compute_optimum(FAR).parameters)
    assert by_form < true / 2
    interval = best_split.compute_split_interval(law, FAR, lambda best: best.parameters)
    assert interval is not None
    assert interval.contains(true) and interval.contains(by_form)


def test_a_plan_says_first_that_approaches_disagree(law: Law) -> None:
    inside = law.model_copy(update={"ranges": None})
    plan = make_plan(inside, PlanRequest(flops=FAR, devices=8), hardware.load())
    lines = list(describe_plan(plan))
    assert lines[1].startswith("! Uncertain: the approaches disagree")
    assert "The plan follows isoflop" in lines[1]
    size = plan.size.parameters_interval
    assert size is not None and size.contains(float(law.form.compute_optimum(FAR).parameters))
    assert plan.size.parameters == pytest.approx(
        float(TRUTH.compute_optimum(FAR).parameters), rel=0.25
    )


def test_a_plan_far_from_the_runs_says_that_approaches_disagree_too(law: Law) -> None:
    plan = make_plan(law, PlanRequest(flops=FAR, devices=8, extrapolate=True), hardware.load())
    assert plan.doubt.startswith("Not advice: the law was fitted to runs of")
    assert "Uncertain: the approaches disagree" in plan.doubt


def test_a_rival_that_knows_no_repeats_does_not_refuse_a_plan_with_enough_tokens(law: Law) -> None:
    form = Kaplan(n_c=6.4e13, d_c=1.8e13, alpha_n=0.076, alpha_d=0.103)
    rival = Compared(form=form, objective=1.0, held_out_error=0.01, as_good=True)
    inside = law.model_copy(update={"ranges": None, "compared": (rival,)})
    request = PlanRequest(flops=FAR, devices=8, tokens_available=1e13)
    assert make_plan(inside, request, hardware.load()).size.parameters_interval is not None


def test_an_approach_without_draws_still_widens_the_interval(law: Law) -> None:
    bare = tuple(approach.model_copy(update={"draws": ()}) for approach in law.approaches)
    undrawn = law.model_copy(update={"approaches": bare})
    interval = best_split.compute_split_interval(undrawn, FAR, lambda best: best.parameters)
    followed = float(best_split.steer(law).compute_optimum(FAR).parameters)
    assert interval is not None and interval.contains(followed)
    assert "by isoflop" in best_split.describe_disagreement(undrawn, FAR)


def test_few_minima_and_laws_of_repeats_leave_the_form_to_decide(law: Law) -> None:
    few = tuple(approach.model_copy(update={"minima": 2}) for approach in law.approaches)
    assert best_split.steer(law.model_copy(update={"approaches": few})) == law.form
    assert best_split.describe_disagreement(law, 1e17) == ""  # in the middle of the runs
