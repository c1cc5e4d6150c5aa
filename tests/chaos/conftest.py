"""Fixtures that inject faults into runs, and compare the runs with undisturbed ones."""

import contextlib
import os
import pickle
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import psutil
import pytest

from trainrig.ray_runtime.ray_session import connect
from trainrig.train.checkpoint import find_newest_valid
from trainrig.train.run import metrics
from trainrig.train.run.run_folder import RunFolder
from trainrig.train.run.step_data import read_trained_samples
from trainrig.train.training_job import TrainingJob

HERE = str(Path(__file__).parent)
# Ray's workers import `trouble` too.
os.environ["PYTHONPATH"] = os.pathsep.join([HERE, os.environ["PYTHONPATH"]])
sys.path.insert(0, HERE)

globals().update(runpy.run_path(str(Path(__file__).parents[1] / "train" / "tiny.py")))

PATIENCE = 300.0  # s for one event: far above what any takes, to end a broken test


@pytest.fixture(scope="session")
def undisturbed(ranks, make_job, tmp_path_factory) -> Callable[[int], TrainingJob]:
    """Return a function that makes undisturbed runs.

    `undisturbed(40)` returns the job of a run of 40 steps that two ranks made without a stop.
    """
    made: dict[int, TrainingJob] = {}

    def run(steps: int) -> TrainingJob:
        if steps not in made:
            training = {
                "steps": steps,
                "checkpoints": {"every": 4, "keep": 2},
                "held_out": {"every": 6, "rows": 8},
                "faults": {"hang_seconds": 3.0, "max_restarts": 9},
            }
            folder = tmp_path_factory.mktemp(f"undisturbed-{steps}")
            # The longer runs read the tiny tokens many times.
            job = make_job(folder, training=training, batches={"epochs": 1e6})
            ranks(2, "train", job=job, attempt=RunFolder(job.folder).take_attempt(0))
            made[steps] = job
        return made[steps]

    return run


def read_results(job: TrainingJob) -> dict[str, Any]:
    """Return results that faults must not change: losses, samples, last weights and optimizer."""
    folder = RunFolder(job.folder)
    newest, damages = find_newest_valid(folder)
    assert newest is not None and not damages
    names = ("step", "train/loss", "train/grad_norm", "train/lr", "train/tokens")
    return {
        "updates": [[line[name] for name in names] for line in metrics.read_series(job.folder)],
        "held out": [
            {
                name: value
                for name, value in line.items()
                if name not in ("time", "attempt") and not name.startswith("speed/")
            }
            for line in metrics.read_held_out_series(job.folder)
        ],
        "samples": read_trained_samples(folder),
        "tensors": {p.name: p.read_bytes() for p in Path(newest.path).glob("*.safetensors")},
    }


@pytest.fixture
def assert_equal() -> Callable[[TrainingJob, TrainingJob], None]:
    """Return a function that asserts that two runs are bit-identical."""

    def check(job: TrainingJob, other: TrainingJob) -> None:
        one = read_results(job)
        two = read_results(other)
        for name in one:
            assert one[name] == two[name], name

    return check


class Events:
    """The events of a run, read while the run records them."""

    def __init__(self, folder: str) -> None:
        self.folder = RunFolder(folder)

    def all(self, kind: str) -> list[dict[str, Any]]:
        """Return the events of one kind so far."""
        return [event for event in self.folder.read_events() if event["event"] == kind]

    def wait(self, kind: str, count: int = 1) -> dict[str, Any]:
        """Wait for the `count`-th event of a kind and return it."""
        until = time.monotonic() + PATIENCE
        while len(found := self.all(kind)) < count:
            assert time.monotonic() < until, f"{len(found)} {kind} of {count}"
            time.sleep(0.02)
        return found[count - 1]

    def wait_for_a_step(self) -> None:
        """Wait until the newest attempt takes steps."""
        until = time.monotonic() + PATIENCE
        while True:
            newest = max((event["attempt"] for event in self.all("attempt_started")), default=0)
            own = {e["event"] for e in self.folder.read_events() if e.get("attempt") == newest}
            if "first_step" in own and not own & {"attempt_failed", "attempt_stopped"}:
                return
            assert time.monotonic() < until, f"attempt {newest} takes no step"
            time.sleep(0.02)

    def ranks(self, of: str = "pid") -> dict[int, int]:
        """Return the processes of the newest attempt's ranks.

        With `of="worker agent"`, return their Ray workers.
        """
        started = self.all("worker_started")
        newest = max(event["attempt"] for event in started)
        return {event["rank"]: event[of] for event in started if event["attempt"] == newest}


def kill_actors(name: str) -> int:
    """Send SIGKILL to this machine's Ray actors of class `name` and return how many there were."""
    return _kill_those(lambda process: f"ray::{name}" in " ".join(process.cmdline()))


def kill_fork_servers() -> int:
    """Send SIGKILL to the fork servers that ranks are forked from, not to the ranks."""
    return _kill_those(lambda process: "ray::ForkServer" in " ".join(process.parent().cmdline()))


def _kill_those(wanted: Callable[[psutil.Process], bool]) -> int:
    killed = 0
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # any process may end just now
            if wanted(process):
                process.kill()
                killed += 1
    return killed


class Aside(threading.Thread):
    """A thread that disturbs a run of the main thread; `end` raises the thread's error."""

    def __init__(self, do: Callable[[], None]) -> None:
        super().__init__(daemon=True)
        self._do = do
        self._error = None
        self.start()

    def run(self) -> None:
        try:
            self._do()
        except BaseException as error:
            self._error = error

    def end(self) -> None:
        self.join(PATIENCE)
        assert not self.is_alive()
        if self._error:
            raise self._error


@pytest.fixture
def chaos() -> Any:
    """Return the helpers of this file, because the tests are no package."""

    class Helpers:
        events = Events
        aside = Aside
        kill_actors = staticmethod(kill_actors)
        kill_fork_servers = staticmethod(kill_fork_servers)
        read_results = staticmethod(read_results)

    return Helpers


@pytest.fixture(scope="module")
def one_ray() -> Iterator[None]:
    """Start a Ray cluster on this machine for two workers."""
    before = os.environ.pop("RAY_ADDRESS", None)
    connect(2, "workers")
    import ray

    yield
    ray.shutdown()
    if before:
        os.environ["RAY_ADDRESS"] = before


@pytest.fixture(scope="module")
def several_raylets() -> Iterator[Any]:
    """Start a cluster of two nodes with room for a worker each, and connect this process to it.

    A module that uses `one_ray` afterwards must not use this fixture.
    """
    from raylets import Raylets

    with mock.patch.dict(os.environ):
        import ray

        ray.shutdown()  # ends another module's cluster, as a process joins one cluster at a time
        found = Raylets()
        os.environ["RAY_ADDRESS"] = found.address
        yield found
        ray.shutdown()
        found.shutdown()


@pytest.fixture
def short_folder(monkeypatch) -> Iterator[Path]:
    """Set a temporary folder for started processes with a short name, as sockets need."""
    with tempfile.TemporaryDirectory(prefix="trc-", dir="/tmp") as folder:
        for name in ("TMPDIR", "RAY_TMPDIR"):
            monkeypatch.setenv(name, folder)
        yield Path(folder)


@pytest.fixture
def start_driver(tmp_path) -> Iterator[Callable[[TrainingJob, int], "subprocess.Popen[str]"]]:
    """Return a function that starts drivers.

    `start_driver(job, 2)` starts a process with its own Ray cluster that trains the job.
    """
    started = []

    def start(job: TrainingJob, workers: int) -> "subprocess.Popen[str]":
        path = tmp_path / "job.pickle"
        path.write_bytes(pickle.dumps(job))
        command = [sys.executable, f"{HERE}/driver.py", str(path), str(workers)]
        started.append(
            subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
        )
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
