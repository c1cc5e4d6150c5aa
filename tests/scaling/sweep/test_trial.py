"""One trial in this process: finished, stopped, resumed, diverged."""

import dataclasses
import json
import math

import numpy as np
import pytest

from trainrig import config, storage
from trainrig.errors import ClusterError, ConfigError, DataError, Unfinished
from trainrig.evaluate.evaluation_run_file import TaskChoice
from trainrig.evaluate.scorecards import read_scored
from trainrig.flops import count_encoder_decoder_flops, count_position_flops
from trainrig.models.architecture.decoder_config import count_parameters
from trainrig.objectives.objective_kinds import CausalLM
from trainrig.scaling.laws.law_formats import parse_objective
from trainrig.scaling.sweep import sweep_tasks
from trainrig.scaling.sweep import trial as trial_module
from trainrig.scaling.sweep.rate_search import RateBatchPair
from trainrig.scaling.sweep.sweep_run_file import DesignPoint, Sweep
from trainrig.scaling.sweep.sweep_table import (
    build_runs_table,
    estimate_seed_noise,
    serialise_design,
    summarise_sweep,
)
from trainrig.scaling.sweep.sweep_tasks import check_tasks
from trainrig.scaling.sweep.trial import (
    SingleRankTrainer,
    StopFile,
    is_complete,
    read_diverged,
    train_trial,
)
from trainrig.scaling.sweep.trials import name_run_folder, plan, read_sweep_tokens
from trainrig.train.loop import train
from trainrig.train.run import metrics
from trainrig.train.run.run_folder import RunFolder


@pytest.fixture
def sweep(tokens, tmp_path) -> Sweep:
    settings = {
        "stage": "sweep",
        "tokens": tokens,
        "output": str(tmp_path / "sweep"),
        "design": {"kind": "Grid", "parameters": [6_000, 12_000], "tokens": [1_024, 2_048]},
        "batches": {"sequence_length": 32, "micro_batch": 4},
        "training": {"fewest_steps": 4, "checkpoint_every": 3},
    }
    return config.build(Sweep, settings, "sweep.toml")


def plan_trials(sweep, *lengths):
    data = read_sweep_tokens(sweep)
    (trial,) = plan(
        sweep, [DesignPoint(6_000, tokens) for tokens in lengths], data, RateBatchPair(1.0, 1.0)
    )
    return trial, data


@pytest.mark.slow
@pytest.mark.parametrize(
    ("objective", "kind"),
    [
        ({"kind": "SpanCorruption"}, "EncoderDecoder"),
        (
            {"kind": "MaskedLM", "rate": 0.5, "final_rate": 0.1, "rate_steps": 40},
            "Encoder",
        ),
        ({"kind": "UL2", "joined": True}, "Decoder"),
        ({"kind": "MultiTokenPrediction", "further_weights": [1.0, 0.5]}, "Decoder"),
    ],
    ids=["spans", "masked", "denoisers of a decoder", "several tokens ahead"],
)
def test_other_objectives_are_swept_with_models_of_theirs_and_exact_operations(
    alone, corrupted_tokens, tmp_path, objective, kind
):
    settings = {
        "stage": "sweep",
        "tokens": corrupted_tokens,
        "output": str(tmp_path / "sweep"),
        "design": {
            "kind": "Grid",
            "parameters": [12_000, 50_000, 200_000],
            "tokens": [1_024, 2_048],
        },
        "batches": {"sequence_length": 32, "micro_batch": 4},
        "training": {"fewest_steps": 4},
        "objective": objective,
    }
    sweep = config.build(Sweep, settings, "sweep.toml")
    data = read_sweep_tokens(sweep)
    points = [DesignPoint(12_000, tokens) for tokens in (1_024, 2_048)]
    (trial,) = plan(sweep, points, data, RateBatchPair(1.0, 1.0))
    train_trial(sweep, trial, data, SingleRankTrainer())
    runs = build_runs_table(sweep, [trial], data)
    assert list(runs.state) == ["end", "end"]
    # Tokens read, whatever the objective predicts.
    assert runs.tokens.tolist() == [length.tokens for length in trial.lengths]
    model = trial.ladder_model.model
    assert model.kind == kind
    of_token = count_position_flops(sweep.objective, model, 32)
    flops = [count_position_flops(sweep.objective, model, 32, at.steps) for at in trial.lengths]
    assert runs.flops.tolist() == pytest.approx(np.array(flops) * runs.tokens)
    if kind == "Encoder":  # each step predicts fewer tokens
        assert flops[1] < flops[0] < of_token
    if model.further_heads:  # further heads are trained, but are not counted in N
        alone = model.without_further_heads
        assert model.further_heads == 2
        assert trial.ladder_model.parameters == count_parameters(alone).layers
        assert of_token > count_position_flops(CausalLM(), alone, 32)
    if kind == "EncoderDecoder":
        row = count_encoder_decoder_flops(model, *sweep.objective.compute_lengths(32))  # type: ignore[attr-defined]
        assert of_token == pytest.approx(row / 32)
    assert {parse_objective(text) for text in runs.objective.tolist()} == {sweep.objective}
    assert all(source in ("books", "web") for source in runs.losses)


def test_objectives_that_a_sweep_cannot_have_are_refused(tokens, sweep):
    given = sweep.model_dump(mode="json")
    spans = {"objective": {"kind": "SpanCorruption"}}
    with pytest.raises(DataError, match="no special token <extra_id_0>"):
        read_sweep_tokens(config.build(Sweep, given | spans, "sweep.toml"))
    asked = given | spans | {"tasks": [{"task": "lambada"}]}
    with pytest.raises(ConfigError, match="objective SpanCorruption"):
        config.build(Sweep, asked, "sweep.toml")


class After:
    """Stop request after a number of heartbeats of training."""

    def __init__(self, beats):
        self._left = beats

    def heartbeat(self, step, doing):
        self._left -= doing == "train"

    def stop_wanted(self):
        return self._left <= 0


def select_rows(runs):
    """Return all values that do not depend on clocks."""
    return [
        (runs.name[row], runs.state[row], runs.tokens[row], runs.loss[row], runs.flops[row])
        for row in range(len(runs))
    ]


@pytest.mark.slow
def test_a_trial_that_was_stopped_again_and_again_ends_as_one_that_was_not(alone, sweep, tmp_path):
    trial, data = plan_trials(sweep, 1_024, 2_048)
    train_trial(sweep, trial, data, SingleRankTrainer())
    whole = build_runs_table(sweep, [trial], data)
    assert list(whole.state) == ["end", "end"] and (np.diff(whole.tokens) > 0).all()
    assert (whole.flops > whole.flops_6nd).all() and (whole.seconds > 0).all()
    other = sweep.model_copy(update={"output": str(tmp_path / "stopped")})
    for _ in range(20):
        try:
            train_trial(other, trial, data, SingleRankTrainer(After(4)))
            break
        except Unfinished:
            continue
    assert select_rows(build_runs_table(other, [trial], data)) == select_rows(whole)
    trunk = RunFolder(name_run_folder(other, trial, trial.trunk))
    assert len(trunk.read_attempts()) > 2
    # Finished parts are left unchanged.
    before = len(trunk.read_attempts())
    train_trial(other, trial, data, SingleRankTrainer())
    assert len(trunk.read_attempts()) == before


def test_a_sweep_of_which_no_run_is_over_has_a_table_without_rows(sweep, tmp_path):
    trial, data = plan_trials(sweep, 1_024, 2_048)
    runs = build_runs_table(sweep, [trial], data)
    assert len(runs) == 0
    runs.write(str(tmp_path / "runs.parquet"))
    assert summarise_sweep([trial], data, runs)["points"] == 0


@pytest.mark.slow
def test_a_branch_whose_checkpoint_is_gone_is_trained_from_its_beginning_to_the_same_end(
    alone, sweep, tmp_path
):
    trial, data = plan_trials(sweep, 1_024, 2_048)
    train_trial(sweep, trial, data, SingleRankTrainer())
    wanted = select_rows(build_runs_table(sweep, [trial], data))
    short = name_run_folder(sweep, trial, trial.lengths[0])
    assert metrics.read_series(short)[0]["step"] > 1
    storage.delete_folder(short)
    storage.delete_folder(name_run_folder(sweep, trial, trial.trunk) + "/checkpoints")
    train_trial(sweep, trial, data, SingleRankTrainer())
    assert metrics.read_series(short)[0]["step"] == 1
    assert select_rows(build_runs_table(sweep, [trial], data)) == wanted


def test_the_earlier_of_two_processes_of_one_run_gives_way(alone, sweep, monkeypatch):
    trial, data = plan_trials(sweep, 1_024)
    folder = RunFolder(name_run_folder(sweep, trial, trial.trunk))

    def train_while_another_begins(*arguments):
        train(*arguments)
        folder.take_attempt(0)

    monkeypatch.setattr(trial_module, "train", train_while_another_begins)
    with pytest.raises(ClusterError, match="another process took the run over from attempt 1"):
        train_trial(sweep, trial, data, SingleRankTrainer())
    assert [attempt.number for attempt in folder.read_attempts()] == [1, 2]


def test_a_trial_that_diverges_is_recorded_with_its_reason_and_is_no_error(
    alone, sweep, monkeypatch
):
    trial, data = plan_trials(sweep, 1_024, 2_048)
    hot = dataclasses.replace(trial, rate=1e30)
    train_trial(sweep, hot, data, SingleRankTrainer())
    reasons = [
        read_diverged(name_run_folder(sweep, hot, length))["reason"] for length in hot.lengths
    ]
    assert "no update can be made" in reasons[1]
    assert (
        reasons[0].startswith("the longest run of its trial, which diverged")
        or "no update" in reasons[0]
    )
    runs = build_runs_table(sweep, [hot], data)
    assert list(runs.state) == ["diverged"] * 2 and np.isnan(runs.loss).all()
    assert summarise_sweep([hot], data, runs)["diverged"] == 2


def test_a_run_that_ends_worse_than_a_guess_has_diverged(alone, sweep, monkeypatch):
    trial, data = plan_trials(sweep, 1_024)
    monkeypatch.setattr(trial_module.math, "log", lambda value: 0.5)
    train_trial(sweep, trial, data, SingleRankTrainer())
    reason = read_diverged(name_run_folder(sweep, trial, trial.trunk))["reason"]
    assert "held-out loss is" in reason and "but guessing among 320 entries" in reason


def test_a_stop_file_is_seen(tmp_path, monkeypatch):
    watch = StopFile(str(tmp_path / "stop"))
    monkeypatch.setattr(trial_module, "LOOK_EVERY", 0.0)
    assert not watch.stop_wanted()
    (tmp_path / "stop").write_text("")
    assert watch.stop_wanted()


@pytest.mark.slow
def test_the_noise_between_seeds_is_pooled_over_points(alone, sweep):
    sweep = sweep.model_copy(update={"seeds": (0, 1)})
    data = read_sweep_tokens(sweep)
    trials = plan(sweep, [DesignPoint(6_000, 1_024)], data, RateBatchPair(1.0, 1.0))
    for trial in trials:
        train_trial(sweep, trial, data, SingleRankTrainer())
    runs = build_runs_table(sweep, trials, data)
    spread, freedom = estimate_seed_noise(runs)
    assert freedom == 1
    assert spread == pytest.approx(abs(runs.loss[0] - runs.loss[1]) / math.sqrt(2))
    named = json.loads(serialise_design(sweep, trials))
    assert [row["trial"] for row in named] == [trial.name for trial in trials]


@pytest.mark.slow
def test_a_trial_runs_its_tasks_and_an_interrupted_one_gives_the_same(
    alone, sweep, riddles, tmp_path, monkeypatch
):
    asking = sweep.model_copy(update={"tasks": (TaskChoice(task=riddles),)})
    check_tasks(asking)
    trial, data = plan_trials(asking, 1_024, 2_048)
    train_trial(asking, trial, data, SingleRankTrainer())
    whole = build_runs_table(asking, [trial], data)
    for length in trial.lengths:
        folder = name_run_folder(asking, trial, length)
        rows = read_scored(f"{folder}/tasks/riddles", "riddles")
        nats = [-r["log_likelihoods"][r["gold"]] / len(r["choices"][r["gold"]]) for r in rows]
        score = [r["scores"]["acc"] for r in rows]
        at = list(whole.name).index(f"{trial.name}-d{length.tokens}")
        assert whole.task_losses["riddles"][at] == pytest.approx(np.mean(nats))
        assert whole.task_scores["riddles"][at] == pytest.approx(np.mean(score))

    other = asking.model_copy(update={"output": str(tmp_path / "cut")})
    with monkeypatch.context() as cut:
        cut.setattr(sweep_tasks, "evaluate", lambda run: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            train_trial(other, trial, data, SingleRankTrainer())
    assert not is_complete(other, name_run_folder(other, trial, trial.trunk))
    train_trial(other, trial, data, SingleRankTrainer())
    again = build_runs_table(other, [trial], data)
    assert select_rows(again) == select_rows(whole)
    assert again.task_losses["riddles"].tolist() == whole.task_losses["riddles"].tolist()
    attempts = RunFolder(name_run_folder(other, trial, trial.trunk)).read_attempts()
    assert len(attempts) == 1  # training was not repeated


def test_tasks_whose_right_answers_have_no_likelihood_are_refused(sweep):
    asking = sweep.model_copy(update={"tasks": (TaskChoice(task="svamp"),), "task_rows": "/no"})
    with pytest.raises(ConfigError, match=r"'svamp'.*scored by GeneratedAnswer, which gives"):
        check_tasks(asking)
