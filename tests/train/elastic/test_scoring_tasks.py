"""Scoring during training, by real processes that are killed."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from support.waiting import wait_until

from trainrig.config import to_toml
from trainrig.errors import DataError
from trainrig.evaluate.scorecards import read_scorecard
from trainrig.train import checkpoint
from trainrig.train.checkpoint import find_newest_valid
from trainrig.train.pretrain import pretrain
from trainrig.train.run.checkpoint_scores import read_scores
from trainrig.train.run.run_folder import RunFolder

pytestmark = [pytest.mark.ray, pytest.mark.slow]
PATIENCE = 400.0  # s: a bound for broken code, far above what any test takes
STEPS = 8


def run_with_evaluation(make_run, folder, task_file, **changes):
    training = {
        "steps": STEPS,
        "checkpoints": {"every": 4},
        "evaluations": ({"name": "quick", "tasks": (task_file,), "every": 2},),
        "stop_if": {
            "evaluation": "quick",
            "score": "words/acc",
            "comparison": "above",
            "value": 2.0,
            "lag": 1,
        },
        "best": {"evaluation": "quick", "score": "words/acc", "lag": 2},
    }
    return make_run(folder, training=training | changes)


def read_weights(folder):
    newest, _ = find_newest_valid(RunFolder(folder))
    assert newest.step == STEPS
    found = sorted(Path(newest.path).glob("*.safetensors"))
    return {path.name: path.read_bytes() for path in found}


def list_events(folder, name):
    return [event for event in RunFolder(folder).read_events() if event["event"] == name]


def list_scores(folder):
    return [(score.step, dict(score.scores)) for score in read_scores(RunFolder(folder), "quick")]


def wait_for(folder, name, count=1):
    wait_until(lambda: len(list_events(folder, name)) >= count, lambda: name, seconds=PATIENCE)
    return list_events(folder, name)[count - 1]


@pytest.fixture(scope="module")
def plain(make_run, tmp_path_factory):
    """Return the folder of the run without an evaluation."""
    folder = str(tmp_path_factory.mktemp("plain") / "run")
    pretrain(make_run(folder, training={"steps": STEPS, "checkpoints": {"every": 4}}))
    return folder


@pytest.fixture(scope="module")
def undisturbed(make_run, task_file, tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("undisturbed") / "run")
    pretrain(run_with_evaluation(make_run, folder, task_file))
    return folder


def test_a_run_with_evaluations_has_the_weights_of_one_without(plain, undisturbed):
    assert read_weights(undisturbed) == read_weights(plain)
    assert [step for step, _ in list_scores(undisturbed)] == [2, 4, 6, 8]
    card = read_scorecard(f"{undisturbed}/evaluations/quick/step_00000008/attempt-0001")
    assert list_scores(undisturbed)[-1][1]["words"].value == card.tasks["words"].headline.value
    page = Path(undisturbed, "report.html").read_text()
    assert "words/acc" in page


def test_the_best_checkpoint_is_kept_and_found(undisturbed, plain):
    found = list_scores(undisturbed)
    top = max(measured["words/acc"].value for _, measured in found)
    first = next(step for step, measured in found if measured["words/acc"].value == top)
    assert f"step_{first:08d}" in checkpoint.resolve(f"{undisturbed}/best")
    there = {path.name for path in Path(undisturbed, "checkpoints").iterdir()}
    assert there == {f"step_{step:08d}" for step in (first, 4, 8)}
    with pytest.raises(DataError, match=r"no \[training.best\]"):
        checkpoint.resolve(f"{plain}/best")


def test_a_scoring_task_that_is_killed_is_begun_again(make_run, task_file, tmp_path, undisturbed):
    folder = str(tmp_path / "run")

    def kill():
        os.kill(wait_for(folder, "evaluation_started")["pid"], signal.SIGKILL)

    threading.Thread(target=kill, daemon=True).start()
    pretrain(run_with_evaluation(make_run, folder, task_file))
    assert len(list_events(folder, "evaluation_failed")) == 1
    assert len(list_events(folder, "evaluation_started")) == 5
    assert read_weights(folder) == read_weights(undisturbed)
    assert list_scores(folder) == list_scores(undisturbed)


@pytest.mark.chaos
def test_a_new_driver_continues_the_scoring_of_a_killed_one(
    make_run, task_file, tmp_path, undisturbed
):
    folder = str(tmp_path / "run")
    file = tmp_path / "run.toml"
    file.write_text(to_toml(run_with_evaluation(make_run, folder, task_file)))
    command = [sys.executable, "-m", "trainrig", "pretrain", str(file)]
    first = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    wait_for(folder, "evaluation_started", 2)
    first.kill()
    first.wait()
    assert len(list_scores(folder)) < 4
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert read_weights(folder) == read_weights(undisturbed)
    assert list_scores(folder) == list_scores(undisturbed)


def test_a_run_that_its_scores_end_is_finished(make_run, task_file, tmp_path):
    folder = str(tmp_path / "run")
    stop = {"evaluation": "quick", "score": "words", "comparison": "above", "value": -1.0}
    run = run_with_evaluation(make_run, folder, task_file, stop_if=stop | {"lag": 3})
    assert pretrain(run).counts["steps"] == 5
    assert json.loads(Path(folder, "evaluations/ended.json").read_text())["step"] == 5
    assert pretrain(run).counts["steps"] == 5
    assert "Its scores ended it" in Path(folder, "report.html").read_text()
