"""Plans: given values are kept, and derived values follow from them."""

import math
from pathlib import Path
from typing import Any

import pytest

from trainrig import hardware
from trainrig.errors import ConfigError
from trainrig.estimate.activation_bytes import RowMasks
from trainrig.estimate.cost_estimate import Assumptions, choose_save_interval
from trainrig.estimate.step_memory import estimate_step_memory
from trainrig.flops import count_position_flops, count_token_flops
from trainrig.models.decoder import count_parameters
from trainrig.objectives.objective_kinds import MaskedLM, MultiTokenPrediction, SpanCorruption
from trainrig.scaling.laws.law import FittedRange, Law, Ranges
from trainrig.scaling.laws.law_formats import serialise_objective
from trainrig.scaling.laws.law_forms import Parametric
from trainrig.scaling.laws.published_laws import find_published_law
from trainrig.scaling.plan.plan_page import build_plan_page, find_effective_size
from trainrig.scaling.plan.plan_schema import PlanRequest, ScalingPlan
from trainrig.scaling.plan.plan_text import describe_plan
from trainrig.scaling.plan.planner import make_plan
from trainrig.train.run_file.training_settings import Training

OFFERS = hardware.load()


def planned(name: str | Law = "besiroglu", **asked: Any) -> ScalingPlan:
    found = find_published_law(name) if isinstance(name, str) else name
    return make_plan(found, PlanRequest.model_validate(asked), OFFERS)


def test_a_budget_is_divided_as_the_law_says() -> None:
    plan = planned(flops=1e21)
    assert plan.size.parameters == pytest.approx(2.778e9, rel=0.02)
    assert plan.size.tokens == pytest.approx(5.999e10, rel=0.02)
    assert plan.loss == pytest.approx(2.3055, rel=1e-3)
    assert plan.size.flops_6nd == pytest.approx(1e21, rel=0.03)
    assert plan.warnings == ()


def test_the_plans_figures_match_the_decoder() -> None:
    plan = planned(flops=1e20)
    count = count_parameters(plan.model)
    recipe = plan.recipe
    assert plan.size.total == count.total
    assert plan.size.tokens == recipe.steps * recipe.global_batch * recipe.sequence_length
    exact = count_token_flops(plan.model, recipe.sequence_length).training
    assert plan.size.flops == exact * plan.size.tokens
    assert plan.loss == float(
        find_published_law("besiroglu").form.compute_loss(count.total, plan.size.tokens)
    )
    assert plan.curve[-1].loss == pytest.approx(plan.loss)
    assert recipe.global_batch % recipe.micro_batch == 0
    assert recipe.global_batch >= plan.cost.devices


@pytest.mark.slow
@pytest.mark.parametrize("days", [0.5, 30.0, 300.0])
def test_device_days_are_spent_to_the_step(days: float) -> None:
    plan = planned(gpu_days=days, device="h200")
    assert plan.cost.device_days == pytest.approx(days, rel=0.01)
    assert plan.cost.predicted and plan.cost.hours_between is not None
    given = planned(gpu_days=days, device="h200", assumptions={"utilisation": 0.4})
    seconds = given.size.flops / (989e12 * 0.4)
    assert given.cost.device_days == pytest.approx(seconds / 86_400)
    assert given.cost.hours_between is None


def test_a_table_of_ones_own_is_planned_on(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text(
        "[devices.mine]\nflops = { bfloat16 = 1e15 }\nmemory = 1e11\nwatts = 500\n"
        'source = "measured"\n'
    )
    request = PlanRequest(gpu_days=10.0)
    plan = make_plan(find_published_law("besiroglu"), request, hardware.load(str(own)))
    assert plan.cost.device == "mine"
    assert plan.cost.usd is None
    assert plan.size.flops == pytest.approx(10 * 86_400 * 4e14, rel=0.01)
    assert plan.cost.kwh == pytest.approx(10 * 24 * 0.5 * 1.5 * 1.2, rel=0.01)


def test_money_is_spent_and_no_more() -> None:
    plan = planned(budget_usd=10_000.0, instance="p5.48xlarge")
    assert plan.cost.usd == pytest.approx(10_000, rel=0.01)
    assert plan.cost.devices == 8
    half = planned(budget_usd=10_000.0, instance="p5.48xlarge", devices=4)
    assert half.cost.usd == pytest.approx(10_000, rel=0.01)  # the whole machine is billed
    assert half.size.flops == pytest.approx(plan.size.flops / 2, rel=0.05)  # four send less


@pytest.mark.slow
@pytest.mark.parametrize("usd", [777.0, 10_000.0, 50_000.0])
@pytest.mark.parametrize("device", ["h100", "a100-80gb"])
def test_a_budget_is_spent_to_the_step_and_never_exceeded(usd: float, device: str) -> None:
    plan = planned(budget_usd=usd, device=device)
    assert plan.cost.usd is not None
    a_step = plan.cost.usd / plan.recipe.steps
    assert usd - 2 * a_step < plan.cost.usd <= usd * (1 + 1e-9)


def test_a_size_and_its_tokens_are_kept() -> None:
    assert planned(parameters=1e9).size.parameters == pytest.approx(1e9, rel=0.02)
    assert planned(tokens=1e11).size.tokens == pytest.approx(1e11, rel=0.01)


def test_a_law_of_other_parameters_counts_others() -> None:
    plan = planned("kaplan", parameters=1e8)
    assert plan.size.non_embedding == pytest.approx(1e8, rel=0.02)
    assert plan.size.parameters == plan.size.non_embedding


def test_few_tokens_are_seen_again_for_less() -> None:
    plan = planned("hoffmann", flops=1e21, tokens_available=1e10)
    assert plan.data is not None
    assert plan.data.epochs == pytest.approx(plan.size.tokens / 1e10)
    assert 1e10 < plan.data.worth < plan.size.tokens
    assert plan.data.worth < plan.data.wall == pytest.approx(1e10 * 16.387756)
    assert plan.loss > plan.data.loss_if_new


def test_repeats_that_nobody_can_mean_are_refused_or_the_headline() -> None:
    with pytest.raises(ConfigError, match=r"repeat the 4\.5M tokens 15\d,\d{3} times"):
        planned("hoffmann", flops=2.07e21, tokens_available=4.5e6)
    plan = planned("hoffmann", flops=1e21, tokens_available=3e8)
    assert plan.doubt.startswith("Not advice: the run repeats its tokens 273 times")
    assert list(describe_plan(plan))[1] == f"! {plan.doubt}"
    assert planned("hoffmann", flops=1e21, tokens_available=1e10).doubt == ""


def make_tiny_law() -> Law:
    form = find_published_law("hoffmann").form
    return Law(
        name="tiny",
        parameters_count="total",
        tokenizer="own",
        form=form,
        ranges=Ranges(
            parameters=FittedRange(least=3e4, greatest=5e5),
            tokens=FittedRange(least=1e6, greatest=1e9),
            tokens_per_parameter=FittedRange(least=1, greatest=1e5),
            flops=FittedRange(least=1e11, greatest=1e15),
        ),
    )


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"parameters": 4e8}, r"runs of 30k to 500k parameters, and this plan has [34]"),
        ({"flops": 1e16}, r"and this plan has .*add --extrapolate"),
        (
            {"flops": 2e13, "vocabulary": 64},
            r"no better than a blind guess among 64 tokens",
        ),
    ],
)
def test_a_plan_that_no_run_supports_has_to_be_asked_for(
    asked: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        planned(make_tiny_law(), **asked)


def test_a_plan_far_from_the_laws_runs_says_so_first() -> None:
    tiny = make_tiny_law()
    plan = planned(tiny, parameters=4e8, extrapolate=True)
    doubt = "Not advice: the law was fitted to runs of 30k to 500k parameters, and this plan has 4"
    assert plan.doubt.startswith(doubt)
    header = build_plan_page(plan, tiny, "run.toml").partition("</header>")[0]
    assert plan.doubt in header and 'class="verdict warning"' in header
    lines = list(describe_plan(plan))
    assert lines[1] == f"! {plan.doubt}" and lines[2].startswith("plan for")
    assert max(number for number, line in enumerate(lines) if line.startswith("! ")) < 9


@pytest.mark.parametrize("unique", [None, 1e10])
def test_the_marker_of_a_plan_lies_at_its_own_loss(unique: float | None) -> None:
    law = find_published_law("hoffmann")
    plan = planned("hoffmann", flops=1e21, tokens_available=unique)
    parameters, tokens = find_effective_size(plan, law.form)
    assert float(law.form.compute_loss(parameters, tokens)) == pytest.approx(plan.loss, rel=1e-9)


def test_a_served_model_trains_longer_and_is_smaller() -> None:
    plan = planned("hoffmann-rounded", flops=1e21, tokens_served=1e12)
    assert plan.service is not None
    assert plan.service.saved == pytest.approx(0.3770, abs=1e-4)
    assert plan.service.training_factor == pytest.approx(1.461, rel=1e-3)
    assert plan.size.parameters == pytest.approx(7.177e8, rel=0.02)
    assert plan.loss == pytest.approx(2.3289, rel=1e-3)


def test_serving_nothing_changes_nothing() -> None:
    assert planned(flops=1e21, tokens_served=0.0) == planned(flops=1e21)


def make_drawn_law() -> Law:
    """Return a law with bootstrap draws on either side of it."""
    base = find_published_law("besiroglu").form
    assert isinstance(base, Parametric)
    draws = tuple(base.with_constants({"E": base.E + (k - 50) / 1000}) for k in range(101))
    return find_published_law("besiroglu").model_copy(update={"draws": draws})


def test_intervals_are_of_the_draws() -> None:
    plan = planned(make_drawn_law(), flops=1e21)
    assert plan.loss_interval is not None
    # The middle 68% of the draws are .0341 to either side. 2.776 is Student's quantile with 4
    # degrees of freedom, as no larger runs taught the scale.
    assert plan.loss_interval.low == pytest.approx(plan.loss - 2.776 * 0.0341, rel=2e-3)
    assert plan.loss_interval.high == pytest.approx(plan.loss + 2.776 * 0.0341, rel=2e-3)
    # E does not move the optimum.
    best = plan.size.parameters_interval
    assert best is not None and best.low == pytest.approx(best.high)
    assert all(p.low is not None and p.low < p.loss for p in plan.curve)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("asked", "warning"),
    [
        ({"flops": 3e23, "extrapolate": True}, "compute by 6ND, 3.0"),
        ({"flops": 1e17, "extrapolate": True}, "times below the least of the law's runs (6e+18)"),
        (
            {"parameters": 4e11, "devices": 8, "extrapolate": True},
            "The model fits 8 devices in no layout",
        ),
    ],
)
def test_plans_far_from_the_runs_or_the_machine_are_flagged(
    asked: dict[str, Any], warning: str
) -> None:
    plan = planned(**asked)
    assert any(warning.split(", 3.0")[0] in line for line in plan.warnings)


@pytest.mark.slow
def test_where_nothing_fits_it_says_how_many_would() -> None:
    plan = planned(parameters=4e11, devices=8, extrapolate=True)
    assert not plan.placement.fits
    needed = plan.placement.devices_needed
    assert needed is not None and needed > 8
    assert planned(parameters=4e11, devices=needed, extrapolate=True).placement.fits


def test_rows_and_operations_are_those_of_the_laws_objective() -> None:
    """Rows of joined spans are wider than the text.

    A falling corruption rate makes later steps cheaper.
    """
    by = find_published_law("besiroglu").model_copy(update={"parameters_count": "non-embedding"})
    asked = {"flops": 1e20, "devices": 8}
    spans = SpanCorruption(joined=True)
    plain = planned(by, **asked)
    wide = planned(by.model_copy(update={"objective": serialise_objective(spans)}), **asked)
    assert wide.placement.memory == estimate_step_memory(
        wide.model, lay_out(wide), 8, wide.recipe.global_batch, wide.recipe.micro_batch,
        spans.compute_row_length(2048), RowMasks.of(spans, by_document=False, on_cpu=False),
    ).total  # fmt: skip
    assert wide.size.tokens == plain.size.tokens
    falling = MaskedLM(rate=0.4, final_rate=0.1, rate_steps=10)
    plan = planned(by.model_copy(update={"objective": serialise_objective(falling)}), gpu_days=10.0)
    steps = plan.recipe.steps
    flops = count_position_flops(falling, plan.model, 2048, steps)
    assert plan.size.flops == flops * plan.size.tokens
    assert plan.cost.device_days == pytest.approx(10.0, rel=0.01)
    several = by.model_copy(update={"objective": serialise_objective(MultiTokenPrediction())})
    assert planned(several, **asked).model.further_heads == 3


def lay_out(plan: ScalingPlan) -> Training:
    placement = plan.placement
    return Training.model_validate(
        {
            "steps": 1,
            "precision": {"compute": "bfloat16"},
            "parallel": placement.parallel,
            "deterministic": placement.deterministic,
            "recompute": placement.recompute,
            "virtual_workers": plan.cost.devices,
        }
    )


def test_checkpoints_are_not_saved_every_few_steps() -> None:
    """On 4,096 devices, a fault every 7 hours and a stall of 5 ms would say every 16 seconds."""
    assumed = Assumptions()
    saving = choose_save_interval(4e7, 4096, step_seconds=5.0, steps=50_000, assumed=assumed)
    assert saving.seconds >= 600
    short = choose_save_interval(4e7, 4096, step_seconds=5.0, steps=10, assumed=assumed)
    assert short.every == 10
    long = choose_save_interval(4e7, 8, step_seconds=5.0, steps=10_000_000, assumed=assumed)
    assert long.every == 10_000
    wide = choose_save_interval(4e7, 4096, step_seconds=5.0, steps=10_000_000, assumed=assumed)
    assert wide.seconds == pytest.approx(0.1 * wide.hours_between_faults * 3600, abs=5)


def test_checkpoints_come_as_young_has_it() -> None:
    plan = planned(flops=1e21)
    saving = plan.saving
    best = math.sqrt(2 * saving.stalled * saving.hours_between_faults * 3600)
    step = plan.cost.hours * 3600 / plan.recipe.steps
    assert saving.seconds == pytest.approx(best, abs=step)
    assert saving.hours_between_faults == 29_500 / plan.cost.devices


def test_checkpoint_size_and_memory_follow_the_optimizer() -> None:
    """Muon keeps one moment of each matrix, and AdamW keeps two."""
    adamw = planned(flops=1e20)
    muon = planned(flops=1e20, optimizer={"kind": "Muon"})
    assert muon.saving.stalled < 0.8 * adamw.saving.stalled
    assert muon.placement.memory < adamw.placement.memory
    assert (adamw.recipe.optimizer.kind, muon.recipe.optimizer.kind) == ("AdamW", "Muon")
