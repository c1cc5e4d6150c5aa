import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from trainrig import hardware, storage
from trainrig.cli import app
from trainrig.config import to_toml
from trainrig.errors import ConfigError, DataError
from trainrig.processes.lease import hold_lease
from trainrig.runs.run_list import list_runs, read_run_state
from trainrig.train.evaluations import CheckpointScore, ScoredCheckpoint
from trainrig.train.run.checkpoint_scores import write_scores
from trainrig.train.run.run_folder import RunFolder
from trainrig.train.run_file.run_files import Pretraining


@pytest.fixture
def home(make_run: Callable[..., Pretraining], tmp_path: Path) -> Path:
    """Write three runs: one just started, one in progress, one abandoned by its driver."""
    for name in ("begun", "deep/on", "left"):
        folder = tmp_path / name
        folder.mkdir(parents=True)
        (folder / "run.toml").write_text(to_toml(make_run(folder)))
        RunFolder(str(folder)).record("attempt_started", attempt=1, step=0, workers=2, why="start")
    lines = []
    for step, loss in ((1, 3.0), (2, 2.5)):
        figures = {"train/loss": loss, "train/tokens": 256 * step, "cluster/workers": 2}
        lines.append({"step": step, "attempt": 1, "train/step_seconds": 900.0, **figures})
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


def test_runs_in_a_bucket_are_found_by_their_parts_of_the_event_log(home: Path, s3: str) -> None:
    for name in ("begun", "deep/on"):
        folder = f"{s3}/runs/{name}"
        storage.write(f"{folder}/run.toml", (home / name / "run.toml").read_bytes())
        RunFolder(folder).record("attempt_started", attempt=1, step=0, workers=2, why="start")
    storage.write(f"{s3}/runs/planned/run.toml", b"")
    folders = [run.folder for run in list_runs(f"{s3}/runs")]
    assert folders == [f"{s3}/runs/begun", f"{s3}/runs/deep/on"]


def test_cost_counts_all_the_time_that_attempts_held_workers(home: Path) -> None:
    """Two attempts of 2 and 4 workers took an hour and half an hour, partly without steps."""
    events = [
        {"event": "attempt_started", "time": 1000.0, "attempt": 1, "step": 0, "workers": 2},
        {"event": "attempt_failed", "time": 4600.0, "attempt": 1, "step": 1, "problem": "died"},
        {"event": "attempt_started", "time": 5000.0, "attempt": 2, "step": 1, "workers": 4},
    ]
    line = {"step": 2, "attempt": 2, "time": 6800.0, "train/loss": 2.0, "train/tokens": 512}
    line |= {"cluster/workers": 4, "train/step_seconds": 10.0}
    for name, entries in (("events.jsonl", events), ("metrics.jsonl", [line])):
        text = "".join(f"{json.dumps(entry)}\n" for entry in entries)
        (home / "left" / name).write_text(text)
    of = next(run for run in list_runs(str(home)) if run.folder.endswith("left"))
    assert of.paid_hours == pytest.approx(2 * 1 + 4 * 0.5) and of.usd is None
    offers = hardware.load()
    gpus = next(name for name in offers.instances if offers.count_accelerators(name) > 1)
    cpus = next(name for name in offers.instances if not offers.count_accelerators(name))
    for name, share in (
        (gpus, 1 / offers.count_accelerators(gpus)),
        (cpus, 1 / offers.find_instance(cpus).vcpus),
    ):
        of = next(e for e in list_runs(str(home), name) if e.folder.endswith("left"))
        assert of.usd == pytest.approx(4 * share * offers.find_instance(name).usd)
    printed = CliRunner().invoke(app, ["runs", str(home), "--instance", cpus]).output.splitlines()
    assert printed[-1].endswith(f"4.00          {of.usd:.2f}")
    with pytest.raises(ConfigError, match=r"no instance 'p9\.huge'"):
        list_runs(str(home), "p9.huge")


def test_the_best_score_of_each_task_is_of_those_that_count(home: Path) -> None:
    folder = RunFolder(str(home / "left"))
    run = (home / "left" / "run.toml").read_text()
    asked = '[{ name = "quick", tasks = ["piqa"], every = 1 }]'
    assert "evaluations = []" in run
    run = run.replace("evaluations = []", f"evaluations = {asked}")
    (home / "left" / "run.toml").write_text(run)
    folder.record("attempt_started", attempt=2, step=2, workers=1, why="spike")
    for step, attempt, acc, text in (
        (1, 1, 0.5, 9.0),
        (2, 1, 0.6, 8.0),
        (3, 1, 0.9, 1.0),
        (3, 2, 0.55, 8.5),
    ):
        scores = {
            "piqa": CheckpointScore(acc, 0.01, True),
            "text": CheckpointScore(text, None, False),
        }
        scores["piqa/acc_norm"] = CheckpointScore(1.0, None, True)
        write_scores(folder, ScoredCheckpoint("quick", step, attempt, scores))
    of = next(listed for listed in list_runs(str(home)) if listed.folder.endswith("left"))
    assert [(s.task, s.value, s.step) for s in of.best_scores] == [
        ("piqa", 0.6, 2),
        ("text", 8.0, 2),
    ]
    printed = CliRunner().invoke(app, ["runs", str(home)]).output.splitlines()
    assert "piqa 0.600 +- 0.010 at 2, and 1 more" in printed[-1]


def test_the_state_is_the_last_events_unless_a_driver_is_live(home: Path) -> None:
    folder = str(home / "left")
    with hold_lease(folder):
        assert read_run_state(folder) == "running"
    for event, state in (("attempt_failed", "failed"), ("run_stopped", "stopped")):
        RunFolder(folder).record(event, step=1)
        assert read_run_state(folder) == state
    (home / "left" / "manifest.json").write_text("{}")
    assert read_run_state(folder) == "finished"


def test_the_command_prints_a_row_a_run(home: Path) -> None:
    printed = CliRunner().invoke(app, ["runs", str(home)]).output.splitlines()
    assert [line.split()[0] for line in printed] == ["run", "begun", "deep/on", "left"]
    assert "2.7500 at 1" in printed[2] and "2/12" in printed[2]
    listed = json.loads(CliRunner().invoke(app, ["runs", str(home), "--json"]).output)
    assert [run["state"] for run in listed] == ["left"] * 3


def test_a_folder_without_runs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no training run"):
        list_runs(str(tmp_path))
