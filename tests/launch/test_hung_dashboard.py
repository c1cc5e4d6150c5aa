"""A dashboard whose process is stopped: it takes connections, and answers nothing."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from trainrig.launch import ray_jobs
from trainrig.launch.ray_jobs import RayJobs, Unreachable

SERVER = """
import runpy, sys, threading
with runpy.run_path(sys.argv[1])["serving"]() as found:
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
    """A server in a process of its own."""

    address: str
    process: "subprocess.Popen[str]"

    def hang(self) -> None:
        os.kill(self.process.pid, signal.SIGSTOP)


@pytest.fixture
def dashboard() -> Iterator[Dashboard]:
    command = [sys.executable, "-c", SERVER, str(Path(__file__).with_name("jobs_server.py"))]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:  # type: ignore[call-overload]
        yield Dashboard(process.stdout.readline().strip(), process)
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGCONT)
            process.stdin.close()


def test_an_answer_is_waited_for_once_however_many_tries_there_are(
    dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ray_jobs, "SILENT_SECONDS", 0.2)
    dashboard.hang()
    began = time.monotonic()
    with pytest.raises(Unreachable, match=r"none in 2 s; its process may hang"):
        RayJobs(dashboard.address, 2.0).versions()
    # Each of the tries had all of it for itself: six seconds and more.
    assert 2.0 <= time.monotonic() - began < 2.0 * ray_jobs.CONNECT_TRIES
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith(f"{dashboard.address}: Ray's dashboard has not answered for 0 s; waits")


def test_an_upload_to_one_that_hangs_ends_as_any_question(dashboard: Dashboard) -> None:
    dashboard.hang()
    with pytest.raises(Unreachable):
        RayJobs(dashboard.address, 0.5)._ask("PUT", "/api/packages/gcs/a.zip", bytes(2**24))


@pytest.mark.slow
def test_submit_says_what_it_waits_for_and_ends(dashboard: Dashboard, tmp_path: Path) -> None:
    (tmp_path / "curate.toml").write_text(CURATE)
    (tmp_path / "pages.jsonl").write_text('{"text": "a page"}\n')
    dashboard.hang()
    command = [sys.executable, "-m", "trainrig", "submit", "curate", "curate.toml"]
    where = ["--address", dashboard.address, "--home", str(tmp_path / "home")]
    ended = subprocess.run([*command, *where], cwd=tmp_path, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (1, "")
    first, *_, last = ended.stderr.splitlines()
    assert "Ray's dashboard has not answered for 5 s; waits for it up to 25 s more" in first
    assert last == "trainrig: submit: 1 problem; nothing was uploaded"
    assert "problem cluster" in ended.stderr and "none in 30 s" in ended.stderr
