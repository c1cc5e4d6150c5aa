"""Runs that real trouble comes to, and what they have to equal in the end."""

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
from trainrig.train.job import TrainingJob
from trainrig.train.run import metrics
from trainrig.train.run.run_folder import RunFolder
from trainrig.train.run.sample_log import read_trained_samples

HERE = str(Path(__file__).parent)
# The workers of Ray import `trouble` too.
os.environ["PYTHONPATH"] = os.pathsep.join([HERE, os.environ["PYTHONPATH"]])
sys.path.insert(0, HERE)

globals().update(runpy.run_path(str(Path(__file__).parents[1] / "train" / "tiny.py")))

PATIENCE = 300.0  # s for one event: a bound for what is broken, far above what any takes


@pytest.fixture(scope="session")
def undisturbed(ranks, make_job, tmp_path_factory) -> Callable[[int], TrainingJob]:
    """`undisturbed(40)`: the job of a run of 40 steps that two ranks made without a stop."""
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
            # The tiny tokens are read again and again by the longer runs.
            job = make_job(folder, training=training, batches={"epochs": 1e6})
            ranks(2, "train", job=job, attempt=RunFolder(job.folder).take_attempt(0))
            made[steps] = job
        return made[steps]

    return run


def what_came_of(job: TrainingJob) -> dict[str, Any]:
    """All that must not depend on what happened: losses, samples, last weights and optimizer."""
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
    """Two runs came to the same, to the last bit."""

    def check(job: TrainingJob, other: TrainingJob) -> None:
        one = what_came_of(job)
        two = what_came_of(other)
        for name in one:
            assert one[name] == two[name], name

    return check


class Events:
    """What a run puts on record, as it does so."""

    def __init__(self, folder: str) -> None:
        self.folder = RunFolder(folder)

    def all(self, kind: str) -> list[dict[str, Any]]:
        """Those of one kind so far."""
        return [event for event in self.folder.read_events() if event["event"] == kind]

    def wait(self, kind: str, count: int = 1) -> dict[str, Any]:
        """The `count`-th of a kind, once it is there."""
        until = time.monotonic() + PATIENCE
        while len(found := self.all(kind)) < count:
            assert time.monotonic() < until, f"{len(found)} {kind} of {count}"
            time.sleep(0.02)
        return found[count - 1]

    def wait_for_a_step(self) -> None:
        """Return while the newest attempt takes steps."""
        until = time.monotonic() + PATIENCE
        while True:
            newest = max((event["attempt"] for event in self.all("attempt_started")), default=0)
            own = {e["event"] for e in self.folder.read_events() if e.get("attempt") == newest}
            if "first_step" in own and not own & {"attempt_failed", "attempt_stopped"}:
                return
            assert time.monotonic() < until, f"attempt {newest} takes no step"
            time.sleep(0.02)

    def ranks(self, of: str = "pid") -> dict[int, int]:
        """The processes of the newest attempt's ranks; `of="worker agent"`: of their Ray
        workers."""
        started = self.all("worker_started")
        newest = max(event["attempt"] for event in started)
        return {event["rank"]: event[of] for event in started if event["attempt"] == newest}


def kill_actors(name: str) -> int:
    """SIGKILL to this machine's Ray actors of the class `name`; how many there were."""
    return _kill_those(lambda process: f"ray::{name}" in " ".join(process.cmdline()))


def kill_fork_servers() -> int:
    """SIGKILL to the processes that ranks are forked from, not to those ranks."""
    return _kill_those(lambda process: "ray::ForkServer" in " ".join(process.parent().cmdline()))


def _kill_those(wanted: Callable[[psutil.Process], bool]) -> int:
    killed = 0
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # one that ends just now, of any kind
            if wanted(process):
                process.kill()
                killed += 1
    return killed


class Aside(threading.Thread):
    """Does something to a run while the main thread is in it; `end` raises what went wrong."""

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
    """The helpers of this file, for tests that are no package."""

    class Helpers:
        events = Events
        aside = Aside
        kill_actors = staticmethod(kill_actors)
        kill_fork_servers = staticmethod(kill_fork_servers)
        what_came_of = staticmethod(what_came_of)

    return Helpers


@pytest.fixture(scope="module")
def one_ray() -> Iterator[None]:
    """A Ray of this machine's own, with room for two workers."""
    before = os.environ.pop("RAY_ADDRESS", None)
    connect(2, "workers")
    import ray

    yield
    ray.shutdown()
    if before:
        os.environ["RAY_ADDRESS"] = before


@pytest.fixture(scope="module")
def several_raylets() -> Iterator[Any]:
    """A cluster of two nodes with room for a worker each, which this process joins.

    Not for a module that asks for `one_ray` afterwards.
    """
    from raylets import Raylets

    with mock.patch.dict(os.environ):
        import ray

        ray.shutdown()  # of another module's fixture; a process joins one cluster at a time
        found = Raylets()
        os.environ["RAY_ADDRESS"] = found.address
        yield found
        ray.shutdown()
        found.shutdown()


@pytest.fixture
def short_folder(monkeypatch) -> Iterator[Path]:
    """The temporary folder of processes that the test starts: names of sockets must be short."""
    with tempfile.TemporaryDirectory(prefix="trc-", dir="/tmp") as folder:
        for name in ("TMPDIR", "RAY_TMPDIR"):
            monkeypatch.setenv(name, folder)
        yield Path(folder)


@pytest.fixture
def start_driver(tmp_path) -> Iterator[Callable[[TrainingJob, int], "subprocess.Popen[str]"]]:
    """`start_driver(job, 2)`: a process of its own, with its own Ray, that trains the job."""
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
