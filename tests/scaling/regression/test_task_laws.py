"""Task laws: synthetic runs of known constants, and runs with too little information."""

from pathlib import Path

import numpy as np
import pytest

from trainrig.scaling.fit.fit_page import build_fit_page
from trainrig.scaling.fit.law_fit import LawFit, fit_law
from trainrig.scaling.fit.law_summary import describe_law
from trainrig.scaling.laws.law import Interval, read_law, write_law
from trainrig.scaling.laws.law_forms import Parametric, TaskForm
from trainrig.scaling.laws.runs_table import RunsTable
from trainrig.scaling.plan.loss_prediction import describe_prediction, predict_loss
from trainrig.scaling.regression.bootstrap import Bootstrap
from trainrig.scaling.regression.task_laws import fit_task, fit_tasks

LOSSES = Parametric(E=1.8, A=480.0, B=2100.0, alpha=0.35, beta=0.37)
SIZES = np.repeat(np.geomspace(2e7, 1e9, 6), 4)
TOKENS = SIZES * np.tile([10, 20, 40, 80], 6)
FLOPS = 6 * SIZES * TOKENS
TRUE = TaskForm(
    chance=0.25, unit=float(np.exp(np.log(FLOPS).mean())), E=0.4, A=0.6, alpha=0.15, middle=0.75,
    width=0.12,
)  # fmt: skip
ROWS = 2_000  # rows of the task


def make_runs(form: TaskForm, noise: float, seed: int = 0) -> RunsTable:
    dice = np.random.default_rng(seed)
    losses = form.compute_loss(FLOPS) * np.exp(dice.normal(0, noise, len(FLOPS)))
    scores = form.compute_score_of_loss(losses)
    if noise:
        scores = dice.binomial(ROWS, scores) / ROWS
    tasks = {
        "task_scores": {"made_up": scores},
        "task_errors": {"made_up": np.sqrt(scores * (1 - scores) / ROWS)},
        "task_losses": {"made_up": losses},
        "task_chances": {"made_up": form.chance},
    }
    loss = LOSSES.compute_loss(SIZES, TOKENS) * np.exp(dice.normal(0, 0.002, len(FLOPS)))
    return RunsTable.of(parameters=SIZES, tokens=TOKENS, loss=loss, tasks=tasks)


def test_runs_without_noise_give_their_constants_back() -> None:
    law = fit_task(make_runs(TRUE, 0.0), "made_up", Bootstrap(draws=20))
    for name, value in TRUE.fitted.items():
        assert law.form.fitted[name] == pytest.approx(value, rel=1e-4), name


def test_known_constants_lie_in_the_intervals_of_noisy_runs_and_so_does_a_larger_models_score() -> (
    None
):
    held = {name: 0 for name in (*TRUE.fitted, "score")}
    for seed in range(10):
        law = fit_task(make_runs(TRUE, 0.01, seed), "made_up", Bootstrap(draws=200))
        for name, value in TRUE.fitted.items():
            found = law.estimates[name].bootstrap
            assert found is not None
            held[name] += found.contains(value)
        ask = 10 * float(FLOPS.max())
        score = law.compute_interval(ask)
        assert score is not None and score.low is not None and score.high is not None
        assert score.high - score.low < 0.12
        held["score"] += score.contains(float(TRUE.compute_score(ask)))
    assert min(held.values()) >= 7, held  # out of ten; 95% intervals, from draws of 24 runs


@pytest.mark.parametrize(
    ("chosen", "form", "why"),
    [
        (
            np.arange(5),
            TRUE,
            "5 runs at 5 computes were evaluated on it, but a task law has 5 constants",
        ),
        (np.array([0, 0, 0, 1, 1, 1, 2]), TRUE, "7 runs at 3 computes"),
        (
            np.arange(24),
            TRUE.with_constants({"middle": -2.0}),
            "scores at chance: the best of 24, 0.2",
        ),
        (np.arange(24), TRUE.with_constants({"A": 1e-9}), "does not fall with compute"),
    ],
)
def test_runs_that_tell_too_little_give_no_law_and_say_why(
    chosen: np.ndarray, form: TaskForm, why: str
) -> None:
    laws, refused = fit_tasks(make_runs(form, 0.01, seed=2).select(chosen), Bootstrap(draws=20))
    assert laws == () and why in refused["made_up"]


@pytest.mark.slow
def test_a_fit_has_the_law_of_each_task_and_predicts_by_it(tmp_path: Path) -> None:
    settings = LawFit(form="Parametric", bootstrap=Bootstrap(draws=40))
    fitted = fit_law(make_runs(TRUE, 0.01), settings, "made", "runs.parquet")
    path = str(tmp_path / "law.json")
    write_law(path, fitted.law)
    law = read_law(path)
    assert law == fitted.law and len(law.tasks[0].draws) == 40
    assert len((tmp_path / "law.json").read_text().splitlines()) < 700  # a draw takes one line
    said = predict_loss(law, 1e9, 1e11)
    (task,) = said.tasks
    assert task.score == float(law.tasks[0].form.compute_score(6e20)) and isinstance(
        task.interval, Interval
    )
    assert f"  made_up {task.score:.3f} {task.interval}, chance 0.25" in "\n".join(
        describe_prediction(said)
    )
    expected = float(law.tasks[0].form.compute_score(10 * FLOPS.max()))
    assert f"{expected:.3f} " in "\n".join(describe_law(law))
    page = build_fit_page(fitted, str(tmp_path))
    assert f"made_up: expected score {expected:.3f} " in page and "Predicted task scores" in page
