"""Runs of reinforcement learning by ranks without Ray."""

import contextlib
import pickle
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support.ranks.groups import Ranks
from trainrig.rl.reinforcement_run_file import ReinforcementLearning
from trainrig.rl.reinforcement_stage import prepare
from trainrig.train import checkpoint
from trainrig.train.run import metrics
from trainrig.train.run.run_folder import RunFolder
from trainrig.train.run.step_data import list_stored_batches
from trainrig.train.training_job import TrainingJob


def train_run(
    ranks: Ranks, run: ReinforcementLearning, world: int, resume: bool = False
) -> TrainingJob:
    """Train `run` on `world` ranks from step 0, or `resume` from its newest checkpoint."""
    job, _, _ = prepare(run)
    folder = RunFolder(job.folder)
    newest = checkpoint.find_newest_valid(folder)[0] if resume else None
    attempt = folder.take_attempt(newest.step if newest else 0)
    ranks(world, "train", job=job, attempt=attempt, resume_from=newest and newest.path)
    return job


def continue_run(ranks: Ranks, run: ReinforcementLearning, world: int) -> TrainingJob:
    """Train `run` on `world` ranks from its newest checkpoint, if any, to its end."""
    return train_run(ranks, run, world, resume=True)


def read_results(job: TrainingJob) -> tuple[list[tuple[int, float]], dict[str, Any]]:
    """Return the losses by step, and the bytes of the final weights."""
    weights = checkpoint.open_model(job.folder).build().state_dict()
    losses = [(line["step"], line["train/loss"]) for line in metrics.read_series(job.folder)]
    return losses, {name: value.numpy().tobytes() for name, value in weights.items()}


@contextlib.contextmanager
def start_samplers(
    pool: Ranks, run: ReinforcementLearning, count: int, last: int | None = None
) -> Iterator[None]:
    """Start `count` processes that sample for `run` meanwhile, up to batch `last`."""
    with tempfile.TemporaryDirectory() as folder:
        until = Path(folder, "enough")
        job, _, _ = prepare(run)
        started = [
            pool.start(1, "sample_for", job=job, until=str(until), last=last)[0]
            for _ in range(count)
        ]
        try:
            yield
        finally:
            until.touch()
            answers = [pickle.load(process.stdout) for process in started]
        assert all(fine for fine, _ in answers), answers


def read_stored_batches(job: TrainingJob) -> dict[tuple[int, int], bytes]:
    """Return the bytes of each micro-batch of each batch, whichever attempt wrote them."""
    return {
        (batch.number, index): (Path(batch.folder) / file["name"]).read_bytes()
        for batch in list_stored_batches(RunFolder(job.folder))
        for index, file in enumerate(batch.files)
    }
