"""A SIGTERM before a run starts: during imports, and while Ray starts."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from trainrig.config import to_toml

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.chaos]
PATIENCE = 300.0  # s: ends a broken test
LINE = "trainrig: stopped by SIGTERM; run the same command to continue"


@pytest.fixture
def start(make_run, tmp_path, short_folder, monkeypatch):
    """Return a function that starts the training command, which writes to temporary folders."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    (tmp_path / "run.toml").write_text(to_toml(make_run(tmp_path / "run", workers=2)))
    started = []

    def begin():
        command = [sys.executable, "-m", "trainrig", "pretrain", str(tmp_path / "run.toml")]
        started.append(subprocess.Popen(command, stderr=subprocess.PIPE, text=True))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def end_by_sigterm(process):
    """Send SIGTERM to a process and return its exit code and its last line."""
    family = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGTERM)
    said = process.communicate(timeout=PATIENCE)[1]
    _, left = psutil.wait_procs(family, timeout=PATIENCE)
    assert not left
    return process.returncode, said.strip().splitlines()


def imports(process, what):
    maps = Path(f"/proc/{process.pid}/maps")
    return maps.exists() and what in maps.read_text()


def has_child(process, name):
    return any(name in child.name() for child in psutil.Process(process.pid).children())


INSTANTS = {
    "it imports Ray": lambda process, folder: imports(process, "_raylet"),
    "Ray has a session": lambda process, folder: list(
        folder.glob("trainrig-ray-*/r/session_*/logs")
    ),
    "Ray has a GCS": lambda process, folder: has_child(process, "gcs_server"),
    "Ray has a raylet": lambda process, folder: has_child(process, "raylet"),
}


@pytest.mark.timeout(600)
def test_a_sigterm_while_a_run_starts_ends_it_as_unfinished_with_one_line(start, short_folder):
    for instant, has_come in INSTANTS.items():
        process = start()
        until = time.monotonic() + PATIENCE
        while not has_come(process, short_folder):
            assert process.poll() is None and time.monotonic() < until, instant
        code, lines = end_by_sigterm(process)
        others = [line for line in lines[:-1] if "continuing an earlier run" not in line]
        assert (code, lines[-1], others) == (75, LINE, []), instant
        assert list(short_folder.glob("trainrig-ray-*")) == [], instant


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_sigterm_at_forty_instants_before_the_first_step(start, short_folder):
    dice = random.Random(int(time.time()))
    for number in range(40):
        process = start()
        time.sleep(0.2 + dice.uniform(0.0, 15.0))
        code, lines = end_by_sigterm(process)
        assert code == 75 and "stopped by SIGTERM" in lines[-1], (number, code, lines)
        assert list(short_folder.glob("trainrig-ray-*")) == []
