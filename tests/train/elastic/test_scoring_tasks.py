"""Scoring beside training, by real processes that are killed."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from trainrig.config import to_toml
from trainrig.errors import DataError
from trainrig.evaluate.scores.card import read_scorecard
from trainrig.train import checkpoint
from trainrig.train.checkpoint import find_newest_valid
from trainrig.train.pretrain import pretrain
from trainrig.train.run.run_folder import RunFolder
from trainrig.train.run.scores.records import read_scores

pytestmark = [pytest.mark.ray, pytest.mark.slow]
PATIENCE = 400.0  # s: a bound for what is broken, far above what any takes
STEPS = 8


def evaluated(make_run, folder, task_file, **changes):
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


def weights(folder):
    newest, _ = find_newest_valid(RunFolder(folder))
    assert newest.step == STEPS
    found = sorted(Path(newest.path).glob("*.safetensors"))
    return {path.name: path.read_bytes() for path in found}


def events(folder, name):
    return [each for each in RunFolder(folder).read_events() if each["event"] == name]


def scores(folder):
    return [(each.step, dict(each.scores)) for each in read_scores(RunFolder(folder), "quick")]


def wait_for(folder, name, count=1):
    until = time.monotonic() + PATIENCE
    while len(found := events(folder, name)) < count:
        assert time.monotonic() < until, name
        time.sleep(0.01)
    return found[count - 1]


@pytest.fixture(scope="module")
def plain(make_run, tmp_path_factory):
    """The folder of the run without an evaluation."""
    folder = str(tmp_path_factory.mktemp("plain") / "run")
    pretrain(make_run(folder, training={"steps": STEPS, "checkpoints": {"every": 4}}))
    return folder


@pytest.fixture(scope="module")
def undisturbed(make_run, task_file, tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("undisturbed") / "run")
    pretrain(evaluated(make_run, folder, task_file))
    return folder


def test_a_run_with_evaluations_has_the_weights_of_one_without(plain, undisturbed):
    assert weights(undisturbed) == weights(plain)
    assert [step for step, _ in scores(undisturbed)] == [2, 4, 6, 8]
    card = read_scorecard(f"{undisturbed}/evaluations/quick/step_00000008/attempt-0001")
    assert scores(undisturbed)[-1][1]["words"].value == card.tasks["words"].headline.value
    page = Path(undisturbed, "report.html").read_text()
    assert "words/acc" in page


def test_the_best_checkpoint_is_kept_and_found(undisturbed, plain):
    found = scores(undisturbed)
    top = max(each["words/acc"].value for _, each in found)
    first = next(step for step, each in found if each["words/acc"].value == top)
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
    pretrain(evaluated(make_run, folder, task_file))
    assert len(events(folder, "evaluation_failed")) == 1
    assert len(events(folder, "evaluation_started")) == 5
    assert weights(folder) == weights(undisturbed)
    assert scores(folder) == scores(undisturbed)


@pytest.mark.chaos
def test_a_driver_that_is_killed_while_a_checkpoint_is_scored_is_followed_by_one_that_goes_on(
    make_run, task_file, tmp_path, undisturbed
):
    folder = str(tmp_path / "run")
    file = tmp_path / "run.toml"
    file.write_text(to_toml(evaluated(make_run, folder, task_file)))
    command = [sys.executable, "-m", "trainrig", "pretrain", str(file)]
    first = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    wait_for(folder, "evaluation_started", 2)
    first.kill()
    first.wait()
    assert len(scores(folder)) < 4
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert weights(folder) == weights(undisturbed)
    assert scores(folder) == scores(undisturbed)


def test_a_run_that_its_scores_end_is_finished(make_run, task_file, tmp_path):
    folder = str(tmp_path / "run")
    stop = {"evaluation": "quick", "score": "words", "comparison": "above", "value": -1.0}
    run = evaluated(make_run, folder, task_file, stop_if=stop | {"lag": 3})
    assert pretrain(run).counts["steps"] == 5
    assert json.loads(Path(folder, "evaluations/ended.json").read_text())["step"] == 5
    assert pretrain(run).counts["steps"] == 5
    assert "Its scores ended it" in Path(folder, "report.html").read_text()
