"""Sweeps by an optimal design that end early, are interrupted, or continue with a larger budget.

The trials are trained in this process, without Ray.
"""

import os
import signal
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from support.local_trials import train_in_this_process

from trainrig import config
from trainrig.errors import ConfigError, Unfinished
from trainrig.scaling.laws.runs_table import RUNS_FILE
from trainrig.scaling.sweep import sweep as sweep_module
from trainrig.scaling.sweep.design_progress import StagePrediction
from trainrig.scaling.sweep.sweep import Sweep, sweep
from trainrig.train.run.run_folder import RunFolder

SMALL, LARGE = ("1.8e9FLOPs",), ("1.8e9FLOPs", "3e9FLOPs")
FOUND = StagePrediction(4.0, 3.5, 4.5)


@pytest.fixture(autouse=True)
def _train_in_this_process(monkeypatch):
    train_in_this_process(monkeypatch)


@pytest.fixture
def make_sweep(tokens, tmp_path):
    """Return `make_sweep("out", LARGE)`: three sizes, seconds in all."""

    def make(output: str, budgets: tuple[str, ...], **changes: object) -> Sweep:
        design = {
            "kind": "OptimalDesign",
            "budgets": budgets,
            "predict": (48_000, 20_000),
            "parameters": (6_000, 24_000),
            "tokens_per_parameter": (0.1, 0.2),
            "noise": 0.01,
        }
        settings = {
            "stage": "sweep",
            "tokens": tokens,
            "output": str(tmp_path / output),
            "design": design | changes,
            "batches": {"sequence_length": 32, "micro_batch": 4, "epochs": 4},
            "training": {"fewest_steps": 6, "checkpoint_every": 50},
        }
        return config.build(Sweep, settings, "sweep.toml")

    return make


def read_results(run: Sweep) -> tuple[list[dict[str, object]], bytes]:
    """Return the rows of the table without times, and the design with its predictions."""
    table = pq.read_table(Path(run.output, RUNS_FILE)).drop_columns(["seconds", "cost"])
    return table.to_pylist(), Path(run.output, "design.json").read_bytes()


def count_attempts(run: Sweep) -> dict[str, int]:
    folders = map(str, Path(run.output).glob("trials/*/*"))
    return {folder: len(RunFolder(folder).read_attempts()) for folder in folders}


@pytest.mark.slow
def test_an_interrupted_sweep_continues_with_a_larger_budget_to_the_same_bytes(
    make_sweep, monkeypatch
):
    whole = make_sweep("whole", LARGE)
    counts = sweep(whole).counts
    assert counts["stages"] == counts["stages_planned"] >= 2

    def die(*_):
        raise KeyboardInterrupt

    small = make_sweep("parts", SMALL)
    with monkeypatch.context() as patched:
        patched.setattr(sweep_module, "predict_target", die)
        with pytest.raises(KeyboardInterrupt):
            sweep(small)
    assert sweep(small).counts["stages"] == 1
    before = count_attempts(small)
    large = make_sweep("parts", LARGE)
    assert sweep(large).counts == counts
    for found, expected in zip(read_results(large), read_results(whole), strict=True):
        assert found == expected
    after = count_attempts(large)
    assert set(before) < set(after) and set(after.values()) == {1}
    with pytest.raises(ConfigError, match="keep these budgets and append a larger one"):
        sweep(make_sweep("parts", LARGE[1:]))


@pytest.mark.slow
def test_a_sweep_ends_after_the_stage_whose_prediction_is_narrow_enough(make_sweep, monkeypatch):
    seen = []

    def predict(design, runs):
        seen.append(len(runs))
        return FOUND

    monkeypatch.setattr(sweep_module, "predict_target", predict)
    stopped = make_sweep("stopped", LARGE, stop_at_width=0.25)
    counts = sweep(stopped).counts
    assert (counts["stages"], counts["predicted_width"]) == (1, 0.25)
    assert counts["points"] == seen[0] == len(read_results(stopped)[0])
    trained = set(count_attempts(stopped))
    assert len(trained) == seen[0]
    # A narrower interval is wanted later: the other stages are trained, and nothing again.
    counts = sweep(make_sweep("stopped", LARGE, stop_at_width=0.2)).counts
    assert counts["stages"] == counts["stages_planned"]
    assert trained < set(count_attempts(stopped))
    assert set(count_attempts(stopped).values()) == {1}


@pytest.mark.slow
@pytest.mark.parametrize("how", ["the file", "SIGTERM"])
def test_a_stop_request_during_the_fit_ends_the_sweep_before_its_next_stage(
    make_sweep, monkeypatch, how
):
    run = make_sweep("stopped", LARGE)

    def ask(design, runs):
        if how == "SIGTERM":
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            Path(run.output, "stop").touch()
        return FOUND

    with monkeypatch.context() as patched:
        patched.setattr(sweep_module, "predict_target", ask)
        with pytest.raises(Unfinished, match=f"stopped by {how}.* after stage 1; each trial"):
            sweep(run)
    trained = set(count_attempts(run))
    assert not Path(run.output, "stop").exists()
    monkeypatch.setattr(sweep_module, "predict_target", lambda design, runs: FOUND)
    counts = sweep(run).counts
    assert counts["stages"] == counts["stages_planned"]
    assert trained < set(count_attempts(run)) and set(count_attempts(run).values()) == {1}
