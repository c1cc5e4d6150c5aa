"""The training loop. It knows no Ray: only ranks, batches and storage."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from trainrig.objectives.causal import cross_entropy_sum
from trainrig.parallel.mesh import local_device
from trainrig.tokens.batches import IGNORE, MicroBatch, local
from trainrig.train import checkpoint
from trainrig.train.metrics import MetricsWriter
from trainrig.train.run_folder import Attempt, RunFolder
from trainrig.train.samples import SampleLog
from trainrig.train.state import Job, TrainState, fresh_state


def train(job: Job, attempt: Attempt, resume_from: str | None) -> int:
    """Train to the end of `job` from the checkpoint `resume_from`; every rank must call it.

    The process group must be up. Returns the last step. The losses are a function of the job, its
    data and the number of ranks, however often it was stopped and resumed.
    """
    folder = RunFolder(job.folder)
    device = local_device()
    torch.set_num_threads(job.training.threads)  # another number adds in another order
    torch.use_deterministic_algorithms(True)
    state = fresh_state(job, device)
    if resume_from:
        checkpoint.load(resume_from, state, job)
    elif job.initial_weights:
        checkpoint.load_weights(job.initial_weights, state, job)
    batches = job.make_batches()
    writer = MetricsWriter(job.folder, attempt.number, state.step) if dist.get_rank() == 0 else None
    samples = SampleLog(job.folder, attempt.number, dist.get_rank())
    began = time.perf_counter()
    while state.step < job.training.steps:
        batch = batches.at(state.data_step)
        mine = local(batch, dist.get_rank(), dist.get_world_size())
        figures = take_step(job, state, mine, count_targets(batch), device)
        samples.write(state.step, (micro for micro, real in mine if real))
        began, seconds = time.perf_counter(), time.perf_counter() - began
        if writer:
            writer.write(state.step, _logged(state, figures, seconds))
        if state.step % job.training.checkpoint_every == 0 or state.step == job.training.steps:
            _save(folder, attempt, state, job)
    samples.close()
    if writer:
        writer.close()
    return state.step


@dataclass(frozen=True)
class StepFigures:
    """What one update was like; the same on every rank."""

    loss: float  # nats per target, mean over the global batch
    grad_norm: float  # of the whole gradient, before clipping
    rate: float  # learning rate
    targets: int  # in the global batch


def count_targets(batch: Sequence[MicroBatch]) -> int:
    """What the loss of a whole global batch is divided by; known before anything is computed."""
    return sum(int((micro.targets != IGNORE).sum()) for micro in batch)


def take_step(
    job: Job,
    state: TrainState,
    mine: Sequence[tuple[MicroBatch, bool]],
    targets: int,
    device: torch.device,
) -> StepFigures:
    """One update of `state`, on a global batch of `targets` targets of which this rank has `mine`.

    Each micro-batch's loss is divided by the targets of the *global* batch before its backward
    pass, so the gradient is that of the mean over all of them, however they are dealt.
    """
    training = job.training
    nats = torch.zeros((), device=device)
    for index, (micro, real) in enumerate(mine):
        # Gradients meet those of the other ranks once a step, at the last micro-batch.
        assert isinstance(state.model, FSDPModule)
        state.model.set_requires_gradient_sync(index == len(mine) - 1)
        ids_BT, targets_BT = (torch.from_numpy(a).to(device) for a in (micro.ids, micro.targets))
        loss = cross_entropy_sum(state.model(ids_BT), targets_BT)
        # One that is not real only joins the others' collectives.
        torch.autograd.backward(loss * (1 / targets if real else 0.0))
        nats += loss.detach() if real else 0.0
    norm = _clip(state.model, training.clip_norm)
    rate = training.optimizer.lr * training.schedule.multiplier(state.step, training.steps)
    for group in state.optimizer.param_groups:
        group["lr"] = rate
    state.optimizer.step()
    state.optimizer.zero_grad(set_to_none=True)
    state.step += 1
    state.data_step += 1
    state.tokens += targets
    dist.all_reduce(nats)
    return StepFigures(float(nats) / targets, float(norm), rate, targets)


def _clip(model: torch.nn.Module, largest: float) -> Tensor:
    """Scale the gradient down to the norm `largest`, if it is above; its norm before."""
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), largest)
    return norm.full_tensor() if isinstance(norm, DTensor) else norm


def _logged(state: TrainState, figures: StepFigures, seconds: float) -> dict[str, float]:
    return {
        "train/loss": figures.loss,
        "train/grad_norm": figures.grad_norm,
        "train/lr": figures.rate,
        "train/tokens": state.tokens,
        "speed/step_seconds": seconds,
        "speed/tokens_per_second": figures.targets / seconds,
        "cluster/workers": dist.get_world_size(),
    }


def _save(folder: RunFolder, attempt: Attempt, state: TrainState, job: Job) -> None:
    checkpoint.save(folder, attempt, state, job)
    if dist.get_rank() == 0:
        folder.record("checkpoint", attempt=attempt.number, step=state.step)
        checkpoint.prune(folder, job.training.keep_checkpoints)
