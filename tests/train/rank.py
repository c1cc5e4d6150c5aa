"""One rank of a process group, for tests: `python rank.py` does what standard input tells it.

Started once and told many times, because importing torch takes longer than what is tested.
"""

import dataclasses
import functools
import os
import pickle
import signal
import sys
import traceback
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from trainrig.parallel.fsdp import shard
from trainrig.parallel.mesh import data_mesh, join_group, local_device
from trainrig.train import checkpoint, loop
from trainrig.train.run_folder import Attempt
from trainrig.train.state import Job, TrainState, fresh_state

TIMEOUT = timedelta(seconds=60)  # no test waits for it: ranks whose peers die fail at once


@dataclass(frozen=True)
class Faulty:
    """Batches that end badly when a micro-batch of `step` is asked for."""

    sound: Any
    step: int
    how: str  # "die", "raise" or "stall" (until someone kills the process)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.sound, name)

    def micro_batch(self, step: int, index: int) -> Any:
        if step == self.step:
            if self.how == "raise":
                raise OSError("the disk of the data is gone")
            if self.how == "stall":
                signal.pause()
            os.kill(os.getpid(), signal.SIGKILL)
        return self.sound.micro_batch(step, index)


def train(
    job: Job,
    attempt: Attempt,
    resume_from: str | None = None,
    fault: tuple[int, str, int] | None = None,
) -> int:
    """`fault`: (rank, how, step); "die in save" kills when all but the manifest is written."""
    if fault and dist.get_rank() == fault[0]:
        _, how, step = fault
        if how == "die in save":
            sound = checkpoint._commit

            def commit(target: str, manifest: checkpoint.CheckpointManifest) -> None:
                if manifest.step == step:
                    os.kill(os.getpid(), signal.SIGKILL)
                sound(target, manifest)

            checkpoint._commit = commit
        else:
            make = job.make_batches
            # Nothing is read ahead, so that all steps before this one are done.
            training = job.training.model_copy(update={"prefetch_steps": 0})
            job = dataclasses.replace(
                job, training=training, make_batches=lambda: Faulty(make(), step, how)
            )
    return loop.train(job, attempt, resume_from)


def tensors(
    job: Job, resume_from: str | None = None, weights_from: str | None = None
) -> dict[str, Any]:
    """All whole tensors of a state, and its counters: fresh, or filled from a checkpoint."""
    state = fresh_state(job, local_device())
    if resume_from:
        checkpoint.load(resume_from, state, job, job.make_batches())
    if weights_from:
        checkpoint.load_weights(weights_from, state, job)
    return _whole(state) | {"counters": (state.step, state.data_step, state.tokens)}


def parts(job: Job) -> dict[str, int]:
    """Elements of each weight that this rank holds of a fresh state."""
    state = fresh_state(job, local_device())
    return {name: p.to_local().numel() for name, p in state.model.named_parameters()}


def _whole(state: TrainState) -> dict[str, Any]:
    return {
        name: (t.full_tensor() if isinstance(t, DTensor) else t).detach().clone().numpy()
        for name, t in state.tensors().items()
    }


def sharded_gradient(factors: tuple[float, ...]) -> list[Any]:
    """Gradients of `factor × sum(model(1))`, each rank with its own factor, met across ranks."""
    torch.manual_seed(0)
    layers = nn.ModuleList([nn.Linear(6, 6, bias=False) for _ in range(2)])
    model = nn.Sequential(*layers)
    shard(model, layers, data_mesh(local_device()))
    (model(torch.ones(1, 6)).sum() * factors[dist.get_rank()]).backward()
    return [p.grad.full_tensor().numpy() for p in model.parameters()]


def mesh() -> tuple[tuple[str, ...] | None, int, int]:
    """Names, size and this rank's place of the mesh of all ranks."""
    made = data_mesh(local_device())
    return made.mesh_dim_names, made.size(), made.get_local_rank()


def main() -> None:
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print must not get between the answers
    actions = {each.__name__: each for each in (train, tensors, parts, sharded_gradient, mesh)}
    for action, arguments, join in iter(functools.partial(pickle.load, sys.stdin.buffer), None):
        join_group(*join, TIMEOUT)
        try:
            answer = (True, actions[action](**arguments))
        except Exception:
            answer = (False, traceback.format_exc())
        finally:
            dist.destroy_process_group()
        pickle.dump(answer, answers)
        answers.flush()


if __name__ == "__main__":
    main()
