"""Jobs with injected faults, in a module that the processes of chaos tests import."""

import dataclasses
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist

from trainrig.train.checkpoint import saver
from trainrig.train.training_job import TrainingJob

MUCH = 64 * 2**20  # bytes


@dataclass(frozen=True)
class Wrapped:
    """Base of objects made in each worker: the result of `make`, with a change by a subclass."""

    make: Callable[[], Any]
    made: Any = None

    def __call__(self) -> Any:
        return dataclasses.replace(self, made=self.make())

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("make", "made"):
            raise AttributeError(name)
        return getattr(self.made, name)


@dataclass(frozen=True)
class Slow(Wrapped):
    """Batches that sleep, so that outside faults happen during a step."""

    seconds: float = 0.02  # a micro-batch
    alone: bool = False  # whether only a rank without others sleeps

    def micro_batch(self, step: int, index: int) -> Any:
        if not self.alone or dist.get_world_size() == 1:
            time.sleep(self.seconds)
        return self.made.micro_batch(step, index)


@dataclass(frozen=True)
class DeadlyEvaluation(Wrapped):
    """Held-out rows, during which rank 0 kills itself by SIGKILL, once."""

    marker: str = ""

    def micro_batch(self, index: int) -> Any:
        if dist.get_rank() == 0 and index:
            die_once(self.marker)
        return self.made.micro_batch(index)


@dataclass(frozen=True)
class DeadlySave(Wrapped):
    """Batches whose rank 0 dies once, when all but the manifest of `step` is written."""

    step: int = 0
    marker: str = ""

    def __call__(self) -> Any:
        commit = saver.commit

        def commit_or_die(target: str, manifest: Any) -> None:
            if manifest.step == self.step:
                die_once(self.marker)
            commit(target, manifest)

        saver.commit = commit_or_die
        return super().__call__()


@dataclass(frozen=True)
class Standing(Wrapped):
    """Batches whose last rank hangs once, in the data of `step`."""

    step: int = 0
    marker: str = ""

    def micro_batch(self, step: int, index: int) -> Any:
        last = dist.get_rank() == dist.get_world_size() - 1
        if step == self.step and last and not Path(self.marker).exists():
            Path(self.marker).touch()
            os.kill(os.getpid(), signal.SIGSTOP)
        return self.made.micro_batch(step, index)


@dataclass(frozen=True)
class Greedy(Wrapped):
    """Batches whose rank 0 takes memory once, in the data of `step`, until it is killed."""

    step: int = 0
    most: int = 0  # bytes, after which it waits
    marker: str = ""

    def micro_batch(self, step: int, index: int) -> Any:
        if step == self.step and dist.get_rank() == 0 and not Path(self.marker).exists():
            Path(self.marker).touch()
            taken = [b"\1" * MUCH for _ in range(self.most // MUCH)]
            signal.pause()
            del taken
        return self.made.micro_batch(step, index)


def die_once(marker: str) -> None:
    """Send SIGKILL to this process, unless the file `marker` shows that this was done."""
    if not Path(marker).exists():
        Path(marker).touch()
        os.kill(os.getpid(), signal.SIGKILL)


def slowed(
    job: TrainingJob, folder: str, seconds: float = 0.02, alone: bool = False
) -> TrainingJob:
    """Return the same job in another folder, with slow batches and no prefetch.

    `alone`: the batches are slow only while a single rank trains.
    """
    training = job.training.model_copy(update={"prefetch_steps": 0})
    made = Slow(job.make_batches, seconds=seconds, alone=alone)
    Path(folder).mkdir(parents=True, exist_ok=True)
    return dataclasses.replace(job, folder=folder, training=training, make_batches=made)
