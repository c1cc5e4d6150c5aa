"""Undisturbed runs, made once, to compare others with."""

import runpy
from collections.abc import Callable
from pathlib import Path

import pytest

from trainrig.train.checkpoint import newest_valid
from trainrig.train.job import TrainingJob
from trainrig.train.run.run_folder import RunFolder

globals().update(runpy.run_path(str(Path(__file__).with_name("tiny.py"))))

STEPS = 20
# A checkpoint every fourth step, all of them kept.
TRAINING = {"steps": STEPS, "checkpoints": {"every": 4, "keep": 100}}

Straight = Callable[[int], TrainingJob]


@pytest.fixture(scope="session")
def straight(ranks, make_job, tmp_path_factory) -> Straight:
    """`straight(2)`: the job of a run of STEPS steps that two ranks made without a stop."""
    made: dict[int, TrainingJob] = {}

    def run(world: int) -> TrainingJob:
        if world not in made:
            job = make_job(tmp_path_factory.mktemp(f"straight-{world}"), training=TRAINING)
            ranks(world, "train", job=job, attempt=RunFolder(job.folder).take_attempt(0))
            made[world] = job
        return made[world]

    return run


@pytest.fixture
def go_on(ranks) -> Callable[..., None]:
    """`go_on(2, job)`: one more attempt by two ranks, from the newest whole checkpoint."""

    def attempt(world: int, job: TrainingJob) -> None:
        folder = RunFolder(job.folder)
        newest, _ = newest_valid(folder)
        assert newest is not None
        path = newest.path
        ranks(world, "train", job=job, attempt=folder.take_attempt(newest.step), resume_from=path)

    return attempt


@pytest.fixture
def last_weights() -> Callable[[TrainingJob], dict[str, bytes]]:
    """The bytes of each tensor file of a run's last checkpoint."""

    def read(job: TrainingJob) -> dict[str, bytes]:
        newest, damages = newest_valid(RunFolder(job.folder))
        assert newest is not None and not damages
        return {path.name: path.read_bytes() for path in Path(newest.path).glob("*.safetensors")}

    return read
