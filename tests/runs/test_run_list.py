import json
import runpy
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from trainrig.cli import app
from trainrig.config import to_toml
from trainrig.errors import DataError
from trainrig.processes.lease import hold_lease
from trainrig.runs.run_list import list_runs, state_of
from trainrig.train.run.run_folder import RunFolder
from trainrig.train.run_file import Pretraining

globals().update(runpy.run_path(str(Path(__file__).parents[1] / "train" / "tiny.py")))


@pytest.fixture
def home(make_run: Callable[..., Pretraining], tmp_path: Path) -> Path:
    """Three runs: one that began, one that got on, one that its driver left."""
    for name in ("begun", "deep/on", "left"):
        folder = tmp_path / name
        folder.mkdir(parents=True)
        (folder / "run.toml").write_text(to_toml(make_run(folder)))
        RunFolder(str(folder)).record("attempt_started", attempt=1, step=0, workers=2, why="start")
    lines = []
    for step, loss in ((1, 3.0), (2, 2.5)):
        figures = {"train/loss": loss, "train/tokens": 256 * step, "cluster/workers": 2}
        lines.append({"step": step, "attempt": 1, "speed/step_seconds": 900.0, **figures})
    lines += [{"step": s, "attempt": 1, "eval/loss": x} for s, x in ((1, 2.75), (2, 2.875))]
    text = "".join(f"{json.dumps(line)}\n" for line in lines)
    (tmp_path / "deep" / "on" / "metrics.jsonl").write_text(text)
    return tmp_path


def test_each_run_says_how_far_it_is_and_what_it_made(home: Path) -> None:
    begun, on, left = list_runs(str(home))
    assert (on.step, on.steps, on.loss, on.tokens) == (2, 12, 2.5, 512)
    assert (on.best_held_out, on.best_step, on.worker_hours) == (2.75, 1, 1.0)
    assert (begun.step, begun.loss, begun.best_held_out, begun.worker_hours) == (0, None, None, 0)
    assert left.state == "left" and left.verb == "pretrain"


def test_the_state_is_that_of_the_last_event_unless_somebody_drives_it(home: Path) -> None:
    folder = str(home / "left")
    with hold_lease(folder):
        assert state_of(folder) == "running"
    for event, state in (("attempt_failed", "failed"), ("run_stopped", "stopped")):
        RunFolder(folder).record(event, step=1)
        assert state_of(folder) == state
    (home / "left" / "manifest.json").write_text("{}")
    assert state_of(folder) == "finished"


def test_the_command_prints_a_row_a_run(home: Path) -> None:
    printed = CliRunner().invoke(app, ["runs", str(home)]).output.splitlines()
    assert [line.split()[0] for line in printed] == ["run", "begun", "deep/on", "left"]
    assert "2.7500 at 1" in printed[2] and "2/12" in printed[2]
    listed = json.loads(CliRunner().invoke(app, ["runs", str(home), "--json"]).output)
    assert [each["state"] for each in listed] == ["left"] * 3


def test_a_folder_without_runs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no training run in it or below it"):
        list_runs(str(tmp_path))
