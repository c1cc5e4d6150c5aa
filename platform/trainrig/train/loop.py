"""The training loop. It knows no Ray: only ranks, batches and storage."""

import functools
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from trainrig.objectives.causal import cross_entropy_sum
from trainrig.parallel.mesh import local_device
from trainrig.tokens.batches import Batches, MicroBatch, Share, read_share
from trainrig.tokens.mixing.prefetch import Prefetch
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
    batches = job.make_batches()
    state = fresh_state(job, device)
    if resume_from:
        checkpoint.load(resume_from, state, job, batches)
    elif job.initial_weights:
        checkpoint.load_weights(job.initial_weights, state, job)
    writer = MetricsWriter(job.folder, attempt.number, state.step) if dist.get_rank() == 0 else None
    samples = SampleLog(job.folder, attempt.number, dist.get_rank())
    mine = functools.partial(read_share, batches, dist.get_rank(), dist.get_world_size())
    began = time.perf_counter()
    with Prefetch(mine, job.training.prefetch_steps) as prefetch:
        while state.step < job.training.steps:
            share = prefetch.at(state.data_step)
            figures = take_step(job, state, share, device)
            samples.write(state.step, (micro for micro, real in share.dealt if real))
            began, seconds = time.perf_counter(), time.perf_counter() - began
            if writer:
                writer.write(state.step, _logged(state, figures, seconds))
            if state.step % job.training.checkpoints.every == 0 or state.step == job.training.steps:
                _save(folder, attempt, state, job, batches)
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


def take_step(job: Job, state: TrainState, share: Share, device: torch.device) -> StepFigures:
    """One update of `state`, on a global batch of which this rank has `share`.

    Each micro-batch's loss is divided by the targets of the *global* batch before its backward
    pass, so the gradient is that of the mean over all of them, however they are dealt.
    """
    training, targets = job.training, share.targets
    nats = torch.zeros((), device=device)
    for index, (micro, real) in enumerate(share.dealt):
        # Gradients meet those of the other ranks once a step, at the last micro-batch.
        assert isinstance(state.model, FSDPModule)
        state.model.set_requires_gradient_sync(index == len(share.dealt) - 1)
        ids_BT, targets_BT = (torch.from_numpy(a).to(device) for a in (micro.ids, micro.targets))
        loss = cross_entropy_sum(_logits(state.model, ids_BT, micro), targets_BT)
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


def _logits(model: torch.nn.Module, ids_BT: Tensor, micro: MicroBatch) -> Tensor:
    if micro.positions is None:
        logits_BTV: Tensor = model(ids_BT)
    else:
        positions_BT = torch.from_numpy(micro.positions).to(ids_BT.device)
        logits_BTV = model(ids_BT, positions_BT=positions_BT)
    return logits_BTV


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


def _save(
    folder: RunFolder, attempt: Attempt, state: TrainState, job: Job, batches: Batches
) -> None:
    checkpoint.save(folder, attempt, state, job, batches)
    if dist.get_rank() == 0:
        folder.record("checkpoint", attempt=attempt.number, step=state.step)
        checkpoint.prune(folder, job.training.checkpoints.keep)
