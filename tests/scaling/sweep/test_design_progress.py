"""Predictions after the stages of a designed sweep, and what is kept of them."""

import json

import numpy as np
import pytest

from trainrig import config
from trainrig.errors import ConfigError
from trainrig.scaling.fit.law_fit import LawFit, fit_law
from trainrig.scaling.laws.law_forms import Parametric
from trainrig.scaling.laws.runs_table import RunsTable
from trainrig.scaling.sweep.design_points import build_budget_design, list_design_points
from trainrig.scaling.sweep.design_progress import (
    DESIGN_FILE,
    StagePrediction,
    check_earlier_design,
    is_narrow_enough,
    predict_target,
    serialise_progress,
    summarise_prediction,
)
from trainrig.scaling.sweep.rate_search import RateBatchPair
from trainrig.scaling.sweep.sweep_run_file import OptimalDesign, Sweep
from trainrig.scaling.sweep.trials import SweepTokens, plan

LAW = Parametric(E=1.8, A=480.0, B=2000.0, alpha=0.35, beta=0.37)
TARGET = (1e9, 2e10)
DATA = SweepTokens(tokenizer="abc", vocabulary=32_000, unique_tokens=10**12, held_out_windows=7)


def build_design(**changes: object) -> OptimalDesign:
    return OptimalDesign(**{"budgets": ("1e18FLOPs",), "predict": TARGET} | changes)


def simulate_runs() -> RunsTable:
    parameters = np.repeat(np.geomspace(1e7, 1.6e8, 5), 4)
    tokens = parameters * np.tile([5.0, 10.0, 20.0, 40.0], 5)
    noise = 0.002 * np.random.default_rng(3).normal(size=20)
    loss = LAW.compute_loss(parameters, tokens) * np.exp(noise)
    trial = [f"t{row // 4}" for row in range(20)]
    return RunsTable.of(parameters=parameters, tokens=tokens, loss=loss, trial=trial)


def plan_sweep(output: str, budgets: list[str], **changes: object):
    design = build_design(budgets=tuple(budgets), **changes).model_dump(exclude_none=True)
    sweep = config.build(Sweep, {"tokens": "t", "output": output, "design": design}, "s")
    designed = build_budget_design(sweep, DATA)
    points = list_design_points(sweep, DATA, designed)
    return designed, plan(sweep, points, DATA, RateBatchPair(1.0, 1.0))


@pytest.mark.slow
def test_a_stage_predicts_what_fit_and_predict_would():
    runs = simulate_runs()
    found = predict_target(build_design(), runs)
    law = fit_law(runs, LawFit(), "sweep").law

    def compute_loss(form):
        return float(form.compute_loss(*TARGET))

    interval = law.predict_interval(compute_loss, *TARGET)
    assert (found.loss, found.low, found.high) == (
        law.combine(compute_loss),
        interval.low,
        interval.high,
    )
    assert found.width == pytest.approx((interval.high - interval.low) / found.loss)


def test_too_few_runs_give_the_reason_in_place_of_a_prediction():
    found = predict_target(build_design(), simulate_runs().select(np.arange(4)))
    assert found.width is None and "add at least" in found.reason


@pytest.mark.parametrize(
    ("width", "high", "ends"),
    [(0.05, 2.04, True), (0.05, 2.055, True), (0.05, 2.08, False), (None, 2.0, False)],
)
def test_a_sweep_ends_when_the_interval_is_narrow_enough(width, high, ends):
    found = StagePrediction(2.0, 1.96, high)
    assert is_narrow_enough(build_design(stop_at_width=width), found) == ends


def test_a_prediction_without_an_interval_never_ends_a_sweep():
    for found in (StagePrediction(None, None, None, "few"), StagePrediction(2.0, 1.9, None)):
        assert not is_narrow_enough(build_design(stop_at_width=1e9), found)


def test_every_trial_of_a_design_has_the_rules_batch_if_some_length_allows_it(tmp_path):
    designed, trials = plan_sweep(str(tmp_path), ["1e18FLOPs"])
    assert all(trial.batch == trial.ruled_batch for trial in trials)
    assert [trial.name for trial in trials] == sorted(
        (trial.name for trial in trials),
        key=lambda name: [int(part[1:]) for part in name.split("-")],
    )
    planned = sum(len(trial.lengths) for trial in trials)
    assert planned == designed.stages[-1].runs and len(trials) == len(designed.trials)


def test_a_sweep_continues_with_a_larger_budget_and_with_no_other_change(tmp_path):
    designed, trials = plan_sweep(str(tmp_path), ["1e18FLOPs"])
    check_earlier_design(str(tmp_path), trials)  # nothing was written yet
    content = serialise_progress(designed, trials, [])
    (tmp_path / DESIGN_FILE).write_bytes(content)
    check_earlier_design(str(tmp_path), trials)
    _, more = plan_sweep(str(tmp_path), ["1e18FLOPs", "4e18FLOPs"])
    assert {trial.name for trial in trials} < {trial.name for trial in more}
    check_earlier_design(str(tmp_path), more)
    for budgets, changes in ((["4e18FLOPs"], {}), (["1e18FLOPs"], {"noise": 0.03})):
        _, others = plan_sweep(str(tmp_path), budgets, **changes)
        with pytest.raises(ConfigError, match="keep these budgets and append a larger one"):
            check_earlier_design(str(tmp_path), others)


def test_the_design_file_has_what_was_expected_and_what_was_found(tmp_path):
    designed, trials = plan_sweep(str(tmp_path), ["1e18FLOPs"])
    found = [StagePrediction(None, None, None, "too few"), StagePrediction(2.0, 1.9, 2.2)]
    content = json.loads(serialise_progress(designed, trials, found))
    assert [stage.get("width") for stage in content["stages"]] == [None, pytest.approx(0.15), None]
    assert content["stages"][0]["reason"] == "too few" and "loss" not in content["stages"][2]
    assert len(content["trials"]) == len(trials)
    counts = summarise_prediction(designed, found)
    assert (counts["stages"], counts["stages_planned"]) == (2, 3)
    assert counts["expected_width"] == designed.stages[1].expected_width
