"""Curves of several runs on one page."""

import json
import math
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from trainrig.cli import app
from trainrig.errors import ConfigError, DataError
from trainrig.runs.overlay import build_overlay_page, read_runs
from trainrig.runs.watch import build_live_page
from trainrig.train.run.run_folder import RunFolder

RUN_FILE = 'stage = "pretrain"\n[training]\nsteps = 60\n'


def write_run(folder: Path, level: float, steps: int, held_out: bool = True) -> str:
    folder.mkdir(parents=True)
    (folder / "run.toml").write_text(RUN_FILE)
    RunFolder(str(folder)).record("attempt_started", attempt=1, step=0, workers=1, why="start")
    lines = []
    for step in range(1, steps + 1):
        figures = {
            "train/loss": level + 3 / step + 0.1 * math.sin(step),
            "train/grad_norm": 1 / step,
            "train/lr": 1e-3,
            "train/tokens": 2_048 * step,
            "train/tokens_per_second": 1e4 * level,
            "train/step_seconds": 0.2,
            "cluster/workers": 1,
        }
        lines.append({"step": step, "attempt": 1, "time": 100.0 + step, **figures})
        if held_out and step % 20 == 0:
            loss = {"eval/loss": level + 0.5 + 1 / step, "eval/web/loss": level + 0.6}
            lines.append({"step": step, "attempt": 1, "time": 100.1 + step, **loss})
    text = "".join(f"{json.dumps(line)}\n" for line in lines)
    (folder / "metrics.jsonl").write_text(text)
    return str(folder)


@pytest.fixture
def two(tmp_path: Path) -> list[str]:
    wild = "<script>alert(1)<_script>"
    return [
        write_run(tmp_path / "a", 3.0, 60),
        write_run(tmp_path / wild, 2.0, 40),
    ]


def extract_text(page: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<style>.*?</style>|<[^>]*>", " ", page, flags=re.DOTALL))


def test_the_page_says_which_run_is_lowest_and_how_each_went(two: list[str]) -> None:
    page = build_overlay_page(read_runs(two))
    text = extract_text(page)
    assert "has the lowest held-out loss, 2.525 nats per token" in text
    assert "Most tokens 123k" in text
    for title in ("Training loss", "Gradient norm", "Learning rate", "Speed"):
        assert f"{title} at the end" in text
    assert "<script>" not in page and page == build_overlay_page(read_runs(two))


def test_the_numbers_are_those_of_the_metrics(two: list[str]) -> None:
    lines = [json.loads(line) for line in Path(two[0], "metrics.jsonl").read_text().splitlines()]
    losses = [line["train/loss"] for line in lines if "train/loss" in line][-4:]
    assert f"{sum(losses) / 4:.4g}" in extract_text(build_overlay_page(read_runs(two)))


def test_hours_are_called_hours_and_are_those_of_the_list_of_runs(two: list[str]) -> None:
    for folder, workers in zip(two, (1, 3), strict=True):
        begun = {"event": "attempt_started", "attempt": 1, "step": 0, "time": 10.0, "why": "start"}
        Path(folder, "events.jsonl").write_text(json.dumps(begun | {"workers": workers}) + "\n")
    runs = read_runs(two)
    hours = sum(run.listed.paid_hours for run in runs)
    assert hours == pytest.approx((150 + 3 * 130) / 3600)
    text = extract_text(build_overlay_page(runs)).replace("\u00a0", " ")
    assert f"Worker hours {hours:.2f} h" in text and "Cost" not in text


def test_a_run_without_a_held_out_loss_is_laid_over_by_the_rest(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / name, 2.0, 9, held_out=False) for name in "ab"]
    text = extract_text(build_overlay_page(read_runs(runs)))
    assert "has the lowest loss" in text and "Lowest held-out loss" not in text


def test_runs_that_cannot_be_overlaid_are_rejected(two: list[str], tmp_path: Path) -> None:
    for wrong in (two[:1], [two[0], f"{two[0]}/"], [f"{tmp_path}/{n}" for n in range(9)]):
        with pytest.raises(ConfigError, match="name two to 8 different runs"):
            read_runs(wrong)
    with pytest.raises(DataError):
        read_runs([two[0], str(tmp_path / "none")])


@pytest.mark.slow
def test_the_command_writes_it_and_the_live_page_shows_it(two: list[str], tmp_path: Path) -> None:
    page = str(tmp_path / "runs.html")
    done = CliRunner().invoke(app, ["report", *two, "--html", page])
    assert done.exit_code == 0 and done.stdout.strip() == page
    assert Path(page).read_text() == build_overlay_page(read_runs(two))
    live = build_live_page(*two)
    assert 'http-equiv="refresh"' in live and "Comparison of the runs" in live
    refused = CliRunner().invoke(app, ["report", *two])
    assert refused.exit_code != 0
