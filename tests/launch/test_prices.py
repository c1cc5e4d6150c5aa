"""A price table of the submitter, which counts a run's cost on a head without such a file."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.launch import jobs_server

from trainrig import cli, hardware
from trainrig.launch.supervise.attempt_ends import Limits
from trainrig.launch.supervise.job_supervisor import JobSupervisor
from trainrig.launch.supervise.metered_cost import Kind, compute_cost
from trainrig.launch.supervise.run_record import Home

TOKENIZER = """
stage = "tokenizer"
output = "{folder}/tokenizer"

[[documents]]
kind = "JSONL"
paths = ["{folder}/pages.jsonl"]
source = "pages"

[tokenizer]
kind = "ByteLevelBPE"
vocabulary = 270
"""
PRICES = Path(__file__).with_name("prices.toml").read_text()


@pytest.fixture
def dashboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Start a dashboard that starts no jobs, and set up a shell that submits to it."""
    monkeypatch.setenv("RAY_AUTH_TOKEN", jobs_server.TOKEN)
    monkeypatch.setenv("TRAINRIG_HOME", str(tmp_path / "home"))
    (tmp_path / "tokenizer.toml").write_text(TOKENIZER.format(folder=tmp_path))
    (tmp_path / "pages.jsonl").write_text('{"text": "a page"}\n')
    (tmp_path / "prices.toml").write_text(PRICES)
    with jobs_server.serving() as found:
        found.hold = 9
        monkeypatch.setenv("RAY_API_SERVER_ADDRESS", found.address)
        yield found


def submit_run(folder: Path, *options: str) -> int:
    run = ["submit", "tokenizer", str(folder / "tokenizer.toml"), "--detach"]
    try:
        cli.main([*run, *options])
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def test_the_prices_travel_with_the_record(dashboard: Any, tmp_path: Path) -> None:
    table = tmp_path / "prices.toml"
    assert submit_run(tmp_path, "--hardware", str(table)) == 0
    table.unlink()
    (record,) = Home(str(tmp_path / "home")).list()
    attempt = record.read_attempt(1)
    assert attempt.limits["hardware"] == f"{record.path}/hardware.toml"
    prices = hardware.load(attempt.limits["hardware"])
    hour = {Kind("gpu", "mine", "spot"): 3600.0}
    assert compute_cost(hour, prices).usd == 0.5
    # Reads the prices in its constructor.
    JobSupervisor(record, attempt, Limits(**attempt.limits), ["true"])


def test_the_prices_that_come_along_need_no_file(dashboard: Any, tmp_path: Path) -> None:
    assert submit_run(tmp_path) == 0
    (record,) = Home(str(tmp_path / "home")).list()
    assert record.read_attempt(1).limits["hardware"] is None


def test_a_table_that_is_wrong_is_refused_before_anything_is_sent(
    dashboard: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "prices.toml"
    table.write_text(PRICES.replace('device = "core"', 'device = "cores"'))
    assert submit_run(tmp_path, "--hardware", str(table)) == 2
    said = capfd.readouterr().err
    assert f"{table}: instances.mine: no device 'cores'; did you mean 'core'?" in said
    assert "Traceback" not in said
    assert not dashboard.uploads and not dashboard.jobs and not (tmp_path / "home").exists()
