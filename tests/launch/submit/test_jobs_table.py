"""The table of runs: a line for each, from its record and its output."""

import json
from pathlib import Path
from typing import Any

import pytest

from trainrig.launch.submit.jobs_table import build_row, build_rows, format_lines, to_text
from trainrig.launch.supervise.run_record import Home, RunRecord

RUN = "[training]\nsteps = 40\n[model]\nlayers = 1\n"


def update(step: int, attempt: int, time: float) -> dict[str, Any]:
    return {
        "step": step,
        "attempt": attempt,
        "time": time,
        "train/loss": 2.0,
        "train/tokens": step * 128,
        "train/tokens_per_second": 128.0,
        "train/step_seconds": 1.0,
        "cluster/workers": 2,
    }


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(str(tmp_path / "home"))


@pytest.fixture
def pretraining(home: Home, tmp_path: Path) -> RunRecord:
    """Record a run with ten updates done, four of them by an attempt that died."""
    run = home.create("pretrain", str(tmp_path / "model"))
    Path(run.run_file).write_text(RUN)
    run.take_attempt("job-1", "http://127.0.0.1:8265", "", {})
    folder = tmp_path / "model"
    folder.mkdir()
    started = {"event": "attempt_started", "attempt": 1, "time": 0.0, "workers": 2}
    (folder / "events.jsonl").write_text(json.dumps(started) + "\n")
    lines = [update(step, 1, float(step)) for step in range(1, 11)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return run


def test_training_progress_is_in_steps(pretraining: RunRecord) -> None:
    row = build_row(pretraining)
    assert (row.verb, row.state, row.step, row.steps) == ("pretrain", "queued", 10, 40)
    assert to_text(row)["progress"] == "10 of 40 steps"
    assert row.goodput == pytest.approx(1.0)
    assert to_text(row)["goodput"] == "100%"
    assert to_text(row)["cost"] == ""


def test_no_id_is_cut_however_narrow_the_screen(
    home: Home, pretraining: RunRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    long = home.create("pretrain", "/x/" + "a-folder-with-a-long-name" * 2)
    head, *lines = format_lines(build_rows(home))
    assert head.startswith("verb      run ")
    assert [line.split()[1] for line in lines] == [long.id, pretraining.id]


def test_cost_sums_all_attempts(pretraining: RunRecord) -> None:
    pretraining.record("started", 1)
    pretraining.write_heartbeat(1, "running", usd=2.0)
    assert build_row(pretraining).usd == 2.0
    pretraining.record("spent", 1, usd=2.5)
    pretraining.take_attempt("job-2", "http://127.0.0.1:8265", "", {})
    pretraining.write_heartbeat(2, "running", usd=1.25)
    assert build_row(pretraining).usd == 3.75
    assert to_text(build_row(pretraining))["cost"] == "3.75 USD"
    pretraining.record("ended", 2, state="failed", usd=None, usd_at_least=1.5, usd_at_most=None)
    row = build_row(pretraining)
    assert (row.usd, row.usd_at_least, row.state) == (None, 4.0, "failed")
    assert to_text(row)["cost"] == "over 4.00 USD"


def test_a_cost_of_which_only_bounds_are_known_is_a_range(pretraining: RunRecord) -> None:
    bounds = {"usd": None, "usd_at_least": 4.03, "usd_at_most": 1554.0}
    pretraining.record("ended", 1, state="failed", **bounds)
    row = build_row(pretraining)
    assert (row.usd, row.usd_at_least, row.usd_at_most) == (None, 4.03, 1554.0)
    assert to_text(row)["cost"] == "4.03 to 1,554.00 USD"


def test_progress_of_other_stages_is_in_splits(home: Home, tmp_path: Path) -> None:
    run = home.create("tokenize", str(tmp_path / "tokens"))
    run.take_attempt("job-1", "http://127.0.0.1:8265", "", {})
    assert to_text(build_row(run))["progress"] == ""
    (tmp_path / "tokens" / "scratch").mkdir(parents=True)
    for number in range(3):
        (tmp_path / "tokens" / "scratch" / f"{number}.json").write_text("{}")
    assert to_text(build_row(run))["progress"] == "3 splits done"
    run.record("ended", 1, state="done", usd=0.5)
    assert to_text(build_row(run))["progress"] == "all"


def test_the_newest_comes_first_and_one_that_cannot_be_read_hides_no_other(
    home: Home, pretraining: RunRecord, tmp_path: Path
) -> None:
    newer = home.create("curate", "s3://no-such-bucket-here/documents")
    Path(pretraining.run_file).unlink()
    found = build_rows(home)
    assert [row.id for row in found] == [newer.id, pretraining.id]
    assert (found[1].step, found[1].steps, found[1].goodput) == (None, None, None)
