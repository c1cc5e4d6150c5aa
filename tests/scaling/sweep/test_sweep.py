"""A real sweep of tiny models on a local Ray."""

import json
import re
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from trainrig import config, manifest
from trainrig.errors import ClusterError, ConfigError, DataError
from trainrig.launch.submit.run_paths import find_input_problems
from trainrig.scaling.laws.runs_files import read_table
from trainrig.scaling.laws.runs_table import RUNS_FILE
from trainrig.scaling.sweep.design_points import list_design_points
from trainrig.scaling.sweep.rate_search import RateBatchPair
from trainrig.scaling.sweep.sweep import Sweep, sweep
from trainrig.scaling.sweep.trial import claim_output
from trainrig.scaling.sweep.trials import (
    build_run_file,
    plan,
    read_sweep_tokens,
)
from trainrig.train.run.run_folder import RunFolder

TIMES = ("seconds", "cost")  # columns that differ from run to run


@pytest.fixture
def make_sweep(tokens, tmp_path):
    """Return `make_sweep("out", seeds=(0, 1))`: two sizes at two lengths, seconds in all."""

    def make(output="sweep", **changes) -> Sweep:
        settings = {
            "stage": "sweep",
            "tokens": tokens,
            "output": str(tmp_path / output),
            "design": {
                "kind": "Rays",
                "parameters": (6_000, 12_000),
                "tokens_per_parameter": (0.3, 0.6),
            },
            "batches": {"sequence_length": 32, "micro_batch": 4, "epochs": 4},
            "training": {"fewest_steps": 6, "checkpoint_every": 5},
        }
        return config.build(Sweep, settings | changes, "sweep.toml")

    return make


def read_timeless_table(run: Sweep) -> bytes:
    """Return the bytes of the table of `run`, without columns of time and cost."""
    table = pq.read_table(Path(run.output, RUNS_FILE)).drop_columns(list(TIMES))
    path = Path(run.output, "timeless.parquet")
    pq.write_table(table, path)
    return path.read_bytes()


def count_attempts(run: Sweep) -> dict[str, int]:
    folders = map(str, Path(run.output).glob("trials/*/*"))
    return {folder: len(RunFolder(folder).read_attempts()) for folder in folders}


@pytest.mark.slow
@pytest.mark.ray
def test_a_sweep_gives_the_same_table_however_many_trials_run_at_once(
    local_ray, make_sweep, riddles
):
    shown = []
    asked = {"along": 2, "tasks": [{"task": riddles}]}
    one = make_sweep("one", trials={"at_once": 1}, **asked)
    two = make_sweep("two", trials={"cpus": 0.5, "at_once": 2}, **asked)
    manifest = sweep(one)
    sweep(two, show=lambda done, of, rows: shown.append((done, of)))
    assert read_timeless_table(one) == read_timeless_table(two)
    assert shown[-1] == (4, 4)
    runs = read_table(one.output)
    ends = runs.select(runs.state == "end")
    assert ends.trial.tolist() == [name for name in ("n5968-s0", "n11920-s0") for _ in range(2)]
    assert (ends.loss < 5.5).all() and set(ends.losses) == {"books", "web"}
    along = runs.select(runs.state == "along")
    assert len(along) == 4 and np.isnan(along.task_scores["riddles"]).all()
    assert (ends.task_losses["riddles"] > 0).all() and (ends.task_chances["riddles"] == 0.5).all()
    assert manifest.counts["points"] == 4 and manifest.counts["diverged"] == 0
    # The sweep is finished: nothing is repeated.
    assert list(count_attempts(one).values()) == [1] * 4
    assert sweep(one).counts == manifest.counts


@pytest.mark.slow
@pytest.mark.ray
def test_a_search_gives_its_best_factors_to_every_point_of_the_law(local_ray, make_sweep):
    run = make_sweep(
        "searched",
        design={"kind": "Grid", "parameters": (6_000, 12_000), "tokens": (1_500,)},
        search={
            "parameters": 6_000,
            "tokens": 3_000,
            "rate_factors": (0.2, 1.0, 1e20),
            "scheduler": {"kind": "ASHA"},
        },
    )
    sweep(run)
    found = json.loads(Path(run.output, "search.json").read_text())
    assert found["rate_factor"] == 1.0 and found["at_an_edge"] == []
    losses = {pair["rate_factor"]: pair["loss"] for pair in found["tried"]}
    assert losses[1.0] < losses[0.2] and losses[1e20] is None
    trials = json.loads(Path(run.output, "trials.json").read_text())
    ruled = [
        run.rule.compute_rate(trial["parameters"], trial["runs"][0]["tokens"]) for trial in trials
    ]
    assert [trial["rate"] for trial in trials] == pytest.approx(ruled, rel=0.01)


@pytest.mark.slow
@pytest.mark.ray
def test_a_trial_that_fails_the_same_way_twice_ends_with_its_reason_in_the_table(
    local_ray, make_sweep, riddles, caplog
):
    trials = {"at_once": 1, "retries": 3}
    run = make_sweep("failing", trials=trials)
    manifest.claim(run.output, run, {"tokens": manifest.read_input(run.tokens, "tokenize").content})
    data = read_sweep_tokens(run)
    small, large = plan(run, list_design_points(run, data), data, RateBatchPair(1.0, 1.0))
    stage, _ = claim_output(build_run_file(run, large, large.trunk, data))
    Path(stage.build_path("run.toml")).unlink()
    # A folder in place of the file, so that each try fails.
    Path(stage.build_path("run.toml")).mkdir()
    with pytest.raises(ClusterError, match=r"1 trials failed \(the first, n11920-s0"):
        sweep(run)
    (record,) = Path(run.output).rglob("failures/*/*.json")
    # Two of the four allowed tries: the same error twice ends the trial.
    assert len(json.loads(record.read_text())) == 2
    assert caplog.text.count("it resumes from its last checkpoint") == 1
    runs = read_table(run.output)
    assert list(zip(runs.trial, runs.state, strict=True)) == [
        *[(small.name, "end")] * 2,
        *[(large.name, "failed")] * 2,
    ]
    failed = runs.select(runs.state == "failed")
    assert all("IsADirectoryError" in reason for reason in failed.reason)
    assert all(reason == "" for reason in runs.select(runs.state == "end").reason)
    # After the obstacle is removed, the same command gives the same table as any other sweep.
    Path(stage.build_path("run.toml")).rmdir()
    assert sweep(run).counts["points"] == 4
    assert set(read_table(run.output).state) == {"end"}
    # A task that is added to a finished sweep is evaluated without more training.
    attempts = count_attempts(run)
    asking = make_sweep("failing", trials=trials, tasks=[{"task": riddles}])
    sweep(asking)
    runs = read_table(asking.output)
    assert (runs.task_losses["riddles"] > 0).all() and len(runs) == 4
    assert count_attempts(asking) == attempts and min(attempts.values()) >= 1


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"trials": {"gpus": 64}}, "trials.gpus = 64, but no node of Ray has more than 0 GPU"),
        (
            {"large": {"parameters": 1e4, "workers": 999}},
            "large.workers: 999 workers of 1 CPU each, but Ray has",
        ),
        (
            {"trials": {"instance": "p5.49xlarge"}},
            "no instance 'p5.49xlarge' in the table of hardware; did you mean",
        ),
    ],
)
def test_resources_that_are_not_there_are_refused(local_ray, make_sweep, changes, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        sweep(make_sweep("refused", **changes))


OPTIMAL = {
    "kind": "OptimalDesign",
    "budgets": ("1.8e9FLOPs",),
    "predict": (48_000, 20_000),
    "parameters": (6_000, 24_000),
    "tokens_per_parameter": (0.1, 0.2),
    "noise": 0.01,
}


@pytest.mark.slow
@pytest.mark.ray
def test_an_optimal_design_gives_the_same_bytes_however_many_trials_run_at_once(
    local_ray, make_sweep
):
    one = make_sweep("one", trials={"at_once": 1}, design=OPTIMAL)
    two = make_sweep("two", trials={"cpus": 0.5, "at_once": 2}, design=OPTIMAL)
    assert sweep(one).counts == sweep(two).counts
    assert read_timeless_table(one) == read_timeless_table(two)
    design = Path(one.output, "design.json").read_bytes()
    assert Path(two.output, "design.json").read_bytes() == design


def test_a_searcher_without_its_package_is_refused(make_sweep, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    searching = {"parameters": 6_000, "tokens": 1_500, "searcher": {"kind": "Optuna"}}
    run = make_sweep(search=searching)
    with pytest.raises(ConfigError, match=r"Optuna is not installed; run `pip install .*optuna"):
        sweep(run)
    assert not Path(run.output).exists()
    assert any("Optuna is not installed" in problem for problem in find_input_problems(run))


def test_a_law_of_nothing_held_out_is_refused(make_sweep, make_tokens, tmp_path):
    run = make_sweep(tokens=make_tokens(tmp_path, held_out=0.0))
    with pytest.raises(DataError, match="nothing is held out"):
        sweep(run)
    assert not Path(run.output).exists()


@pytest.mark.soak
@pytest.mark.ray
def test_optuna_draws_factors_between_the_least_and_the_greatest(local_ray, make_sweep):
    pytest.importorskip("optuna")
    run = make_sweep(
        "drawn",
        design={"kind": "Grid", "parameters": (6_000, 12_000), "tokens": (1_500,)},
        trials={"at_once": 1},
        search={
            "parameters": 6_000,
            "tokens": 1_500,
            "rate_factors": (0.25, 4.0),
            "batch_factors": (0.5, 2.0),
            "searcher": {"kind": "Optuna", "draws": 2},
        },
    )
    sweep(run)
    found = json.loads(Path(run.output, "search.json").read_text())
    assert len(found["tried"]) == 2
    assert all(0.25 <= pair["rate_factor"] <= 4 for pair in found["tried"])
    assert all(0.5 <= pair["batch_factor"] <= 2 for pair in found["tried"])
