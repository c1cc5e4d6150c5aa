"""A dashboard whose process is stopped: it accepts connections but never answers."""

import contextlib
import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from trainrig import cli
from trainrig.launch import ray_jobs
from trainrig.launch.ray_jobs import RayJobs, Unreachable
from trainrig.launch.submit import preflight, resubmit
from trainrig.launch.submit.follow import Following
from trainrig.launch.supervise.attempt_ends import Limits
from trainrig.launch.supervise.run_record import Home

SERVER = """
import sys
from support.launch.jobs_server import serving
with serving() as found:
    print(found.address, flush=True)
    sys.stdin.read()
"""
CURATE = """
stage = "curate"
output = "documents"

[[sources]]
name = "pages"
paths = ["pages.jsonl"]
"""


@dataclass
class Dashboard:
    """A server in a separate process."""

    address: str
    process: "subprocess.Popen[str]"

    def hang(self) -> None:
        os.kill(self.process.pid, signal.SIGSTOP)


@pytest.fixture
def dashboard() -> Iterator[Dashboard]:
    command = [sys.executable, "-c", SERVER]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:  # type: ignore[call-overload]
        yield Dashboard(process.stdout.readline().strip(), process)
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGCONT)
            process.stdin.close()


@pytest.mark.slow
def test_the_timeout_covers_all_tries_together(
    dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ray_jobs, "SILENT_SECONDS", 0.2)
    monkeypatch.setattr(ray_jobs, "CONNECT_TRIES", 30)
    dashboard.hang()
    began = time.monotonic()
    with pytest.raises(Unreachable, match="answer in 2 s"):
        RayJobs(dashboard.address, 2.0).fetch_versions()
    # If each try had the whole timeout, this would take a minute.
    assert 2.0 <= time.monotonic() - began < 2.0 * ray_jobs.CONNECT_TRIES
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith(
        f"{dashboard.address}: Ray's dashboard has not answered for 0 s; waiting"
    )


def test_an_upload_to_a_hung_dashboard_times_out(dashboard: Dashboard) -> None:
    dashboard.hang()
    with pytest.raises(Unreachable):
        RayJobs(dashboard.address, 0.5)._ask("PUT", "/api/packages/gcs/a.zip", bytes(2**24))


def test_submit_names_the_hung_dashboard_and_ends(
    dashboard: Dashboard,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(ray_jobs, "SILENT_SECONDS", 0.2)
    monkeypatch.setattr(preflight, "RayJobs", functools.partial(RayJobs, timeout=1.0))
    monkeypatch.chdir(tmp_path)
    Path("curate.toml").write_text(CURATE)
    Path("pages.jsonl").write_text('{"text": "a page"}\n')
    dashboard.hang()
    where = ["--address", dashboard.address, "--home", str(tmp_path / "home")]
    with pytest.raises(SystemExit) as ended:
        cli.main(["submit", "curate", "curate.toml", *where])
    shown = capfd.readouterr()
    assert (ended.value.code, shown.out) == (1, "")
    assert "Ray's dashboard has not answered for" in caplog.text
    assert "problem cluster" in shown.err and "no answer in 1 s" in shown.err
    assert shown.err.splitlines()[-1] == "trainrig: submit: 1 problem; nothing was uploaded"


def test_a_run_is_followed_from_storage_while_its_dashboard_hangs(
    dashboard: Dashboard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resubmit, "SILENT_SECONDS", 0.3)
    run = Home(str(tmp_path / "home")).create("evaluate", "/data/out")
    run.take_attempt("job-1", dashboard.address, "", {})
    run.record("started", 1)
    run.write_heartbeat(1, "running")
    dashboard.hang()
    said: list[str] = []

    def say(line: str) -> None:
        said.append(line)
        if "following the run from storage meanwhile" in line:
            run.record("ended", 1, state="done", exit_code=0)

    following = Following(run, lambda line: None, say)
    ended = resubmit.Resubmitter(following, Limits(), None, say).wait_for_end()
    assert ended["exit_code"] == 0
    assert any(
        "no Ray dashboard answers (no answer in 0.3 s; its process may hang)" in s for s in said
    )
