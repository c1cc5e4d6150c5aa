"""Fixtures that inject faults into runs, and compare the runs with undisturbed ones.

tests/conftest.py registers this module as a plug-in, so the fixtures import late.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

import pytest

from support.remembered import remember

if TYPE_CHECKING:
    from support.ranks.groups import Ranks
    from support.raylets import Raylets
    from trainrig.train.training_job import TrainingJob


@pytest.fixture(scope="session")
def undisturbed(
    ranks: Ranks,
    make_job: Callable[..., TrainingJob],
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[int], TrainingJob]:
    """Return a function that makes undisturbed runs.

    `undisturbed(40)` returns the job of a run of 40 steps that two ranks made without a stop.
    """
    from trainrig.train.run.run_folder import RunFolder

    @remember
    def run(steps: int) -> TrainingJob:
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
        return job

    return run


@pytest.fixture
def assert_equal() -> Callable[[TrainingJob, TrainingJob], None]:
    """Return a function that asserts that two runs are bit-identical."""
    from support.faults import read_results

    def check(job: TrainingJob, other: TrainingJob) -> None:
        one = read_results(job)
        two = read_results(other)
        for name in one:
            assert one[name] == two[name], name

    return check


@pytest.fixture(scope="module")
def one_ray() -> Iterator[None]:
    """Start a Ray cluster on this machine for two workers."""
    import ray

    from trainrig.ray_runtime.ray_session import connect

    before = os.environ.pop("RAY_ADDRESS", None)
    connect(2, "workers")

    yield
    ray.shutdown()
    if before:
        os.environ["RAY_ADDRESS"] = before


@pytest.fixture(scope="module")
def several_raylets() -> Iterator[Raylets]:
    """Start a cluster of two nodes with room for a worker each, and connect this process to it.

    A module that uses `one_ray` afterwards must not use this fixture.
    """
    import ray

    from support.raylets import Raylets

    with mock.patch.dict(os.environ):
        ray.shutdown()  # ends another module's cluster, as a process joins one cluster at a time
        found = Raylets()
        os.environ["RAY_ADDRESS"] = found.address
        yield found
        ray.shutdown()
        found.shutdown()


@pytest.fixture
def short_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Set a temporary folder for started processes with a short name, as sockets need."""
    with tempfile.TemporaryDirectory(prefix="trc-", dir="/tmp") as folder:
        for name in ("TMPDIR", "RAY_TMPDIR"):
            monkeypatch.setenv(name, folder)
        yield Path(folder)


@pytest.fixture
def start_driver(
    tmp_path: Path,
) -> Iterator[Callable[[TrainingJob, int], subprocess.Popen[str]]]:
    """Return a function that starts drivers.

    `start_driver(job, 2)` starts a process with its own Ray cluster that trains the job.
    """
    started: list[subprocess.Popen[str]] = []

    def start(job: TrainingJob, workers: int) -> subprocess.Popen[str]:
        path = tmp_path / "job.pickle"
        path.write_bytes(pickle.dumps(job))
        command = [sys.executable, "-m", "support.driver", str(path), str(workers)]
        started.append(
            subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
        )
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
