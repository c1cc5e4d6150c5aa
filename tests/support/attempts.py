"""Attempts of a run without Ray, one after the other, as a supervisor starts them."""

import dataclasses
import signal
from typing import Any

from trainrig.parallel.layout import FSDP
from trainrig.train.checkpoint import find_newest_valid
from trainrig.train.elastic.failure_cause import record_start
from trainrig.train.run.run_folder import RunFolder
from trainrig.train.training_job import TrainingJob


def go_on(
    job: TrainingJob, world: int, group: Any, fault: tuple[int, str, int] | None = None
) -> None:
    """Run an attempt from the newest checkpoint, and with a `fault` until its rank is dead."""
    folder = RunFolder(job.folder)
    laid_out = job.lay_out(world)
    found, damages = find_newest_valid(folder)
    assert not damages
    attempt = folder.take_attempt(found.step if found else 0)
    record_start(folder, attempt, laid_out.training.parallel, world, "test")
    told = {"job": laid_out, "attempt": attempt, "resume_from": found.path if found else None}
    if fault is None:
        group(world, "train", **told)
        return
    processes = group.start(world, "train", **told, fault=fault)
    assert processes[fault[0]].wait() == -signal.SIGKILL
    group.end()


def continue_run(job: TrainingJob, world: int, group: Any, **arguments: Any) -> list[Any]:
    """Run one attempt from the newest valid checkpoint, and return the ranks' answers."""
    folder = RunFolder(job.folder)
    found, damages = find_newest_valid(folder)
    assert not damages
    attempt = folder.take_attempt(found.step if found else 0)
    path = found.path if found else None
    return group(world, "train", job=job, attempt=attempt, resume_from=path, **arguments)


def read_whole(ranks: Any, job: TrainingJob) -> Any:
    """Return the contents of the last checkpoint of `job`, as one process reads it."""
    found, damages = find_newest_valid(RunFolder(job.folder))
    assert found is not None and not damages
    training = job.training.model_copy(update={"parallel": FSDP()})
    plain = dataclasses.replace(job, training=training)
    return ranks(1, "tensors", job=plain, resume_from=found.path)[0]
