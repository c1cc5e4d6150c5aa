"""The training loop. It knows no Ray: only ranks, batches and storage."""

import functools
from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist

from trainrig.parallel import numerics
from trainrig.parallel.mesh import local_device
from trainrig.parallel.precision import set_products
from trainrig.parallel.stop_consensus import StopConsensus
from trainrig.processes.heartbeats import UNSUPERVISED, HeartbeatSink
from trainrig.tokens.batches import Batches, read_local_batch
from trainrig.tokens.mixing.prefetch import Prefetch
from trainrig.train import checkpoint
from trainrig.train.held_out import evaluate
from trainrig.train.job import TrainingJob
from trainrig.train.run import metrics
from trainrig.train.run.run_folder import RunFolder, TrainingAttempt
from trainrig.train.run.step_logger import StepLogger
from trainrig.train.state import TrainState, fresh_state
from trainrig.train.step import Stepper


@dataclass(frozen=True)
class LoopResult:
    """How an attempt ended in which nothing went wrong."""

    step: int  # updates done, all of them saved
    stopped: bool  # asked to, before the last step


def train(
    job: TrainingJob,
    attempt: TrainingAttempt,
    resume_from: str | None,
    heartbeats: HeartbeatSink = UNSUPERVISED,
) -> LoopResult:
    """Train to the end of `job` from the checkpoint `resume_from`; every rank must call it.

    The process group must be up. The losses are a function of the job and its data, however often
    it was stopped and resumed; in deterministic mode, also on however many ranks.
    """
    training, wanted = job.training, job.training.held_out
    training.check_workers(dist.get_world_size())
    numerics.settle(training.threads, training.deterministic)
    set_products(training.precision)
    heartbeats.heartbeat(0, "load")
    batches, held_out = job.make_batches(), job.make_held_out()
    state = _first_state(job, resume_from, batches)
    agreement = StopConsensus(timedelta(seconds=training.collective_timeout))
    logger = StepLogger(job, attempt, state)
    logger.log_numerics()
    saver = checkpoint.Saver(RunFolder(job.folder), attempt, job, batches)

    def agreed_to_stop(doing: str) -> bool:
        heartbeats.heartbeat(state.step, doing)
        return agreement.any(heartbeats.stop_wanted())

    def measured() -> bool:
        """Measure the held-out loss; false: all agreed to stop instead."""
        # After the last step it is measured now or never: a run that has saved it is at its end.
        last = state.step == training.steps
        stop = functools.partial(agreed_to_stop, "evaluate")
        if held_out is None:
            return True
        loss = evaluate(job.objective, state.model, held_out, lambda: stop() and not last)
        if loss:
            logger.log_held_out(loss)
        return loss is not None

    def save() -> int:
        logger.flush()
        heartbeats.heartbeat(state.step, "save")
        saver.save(state)
        return state.step

    agreed = functools.partial(agreed_to_stop, "train")
    stepper = Stepper(job, batches.sources, state, agreed)
    virtual = training.virtual_workers if training.deterministic else None
    ranks = (dist.get_rank(), dist.get_world_size())
    read = functools.partial(read_local_batch, batches, *ranks, virtual=virtual)
    saved, stopped = state.step, False
    # The attempt that saved this step may have ended before it had measured it.
    if held_out and wanted.due(state.step, training.steps):
        missing = dist.get_rank() == 0 and not metrics.is_measured(job.folder, state.step)
        stopped = agreement.any(missing) and not measured()
    with Prefetch(read, training.prefetch_steps) as prefetch, saver.kept_if_diverged():
        while state.step < training.steps and not stopped:
            local = prefetch.at(state.data_step)
            figures = stepper.take(local)
            if figures is None:
                stopped = True
            elif figures.fault:
                logger.log_skipped(figures)
            else:
                logger.log_step(local, figures)
                if held_out and wanted.due(state.step, training.steps):
                    stopped = not measured()
                if stopped or saver.due(state.step):
                    saved = save()
    if saved < state.step:
        save()
    saver.finish()
    logger.close()
    return LoopResult(state.step, stopped=state.step < training.steps)


def _first_state(job: TrainingJob, resume_from: str | None, batches: Batches) -> TrainState:
    state = fresh_state(job, local_device())
    if whole := resume_from or job.branch_from:
        checkpoint.load(whole, state, job, batches)
    elif job.initial_weights:
        checkpoint.load_weights(job.initial_weights, state, job)
    return state
