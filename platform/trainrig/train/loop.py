"""The training loop. It knows no Ray: only ranks, batches and storage."""

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta

import torch.distributed as dist

from trainrig.parallel import numerics
from trainrig.parallel.exact.deterministic import count_peers
from trainrig.parallel.float8 import check_float8
from trainrig.parallel.mesh import find_local_device
from trainrig.parallel.precision import set_products
from trainrig.parallel.stop_consensus import StopConsensus, StopQuestions
from trainrig.processes.heartbeats import UNSUPERVISED, HeartbeatSink
from trainrig.tokens.batch_makers import BatchMaker
from trainrig.tokens.batches import Batches, DataHistory, read_local_batch
from trainrig.tokens.mixing.prefetch import Prefetch
from trainrig.train import checkpoint
from trainrig.train.held_out import HeldOutSets, evaluate
from trainrig.train.job import TrainingJob
from trainrig.train.loss_table import Loss
from trainrig.train.online_batches import OnlineBatches
from trainrig.train.run import metrics
from trainrig.train.run.compared.asking import RunComparison
from trainrig.train.run.profiling import StepRecorder
from trainrig.train.run.run_folder import RunFolder, TrainingAttempt
from trainrig.train.run.step_logger import StepLogger
from trainrig.train.scoring.run_scores import Next, RunScores
from trainrig.train.state import TrainState, fresh_state
from trainrig.train.step import Stepper


@dataclass(frozen=True)
class LoopResult:
    """How an attempt ended in which nothing went wrong."""

    step: int  # updates done, all of them saved
    stopped: bool  # asked to, before the last step
    rolled_back: bool = False  # a spike: the next attempt goes on from an earlier checkpoint


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
    check_float8(training.precision, compiled=training.compile is not None)
    heartbeats.heartbeat(0, "load")
    made, held_out = job.make_batches(), job.make_held_out()
    state = _first_state(job, resume_from, made)
    agreement = StopConsensus(timedelta(seconds=training.collective_timeout))
    logger = StepLogger(job, attempt, state)
    logger.log_numerics()
    saver = checkpoint.Saver(RunFolder(job.folder), attempt, job, made)

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
        began = time.perf_counter()
        found = _measure_held_out(job, state, held_out, lambda: stop() and not last)
        if found:
            logger.log_held_out(*found, seconds=time.perf_counter() - began)
        return found is not None

    def save() -> int:
        logger.flush()
        heartbeats.heartbeat(state.step, "save")
        began = time.perf_counter()
        saver.save(state)
        logger.log_save(time.perf_counter() - began)
        return state.step

    def gone_back() -> bool:
        """Whether a spike has become whole, and the run is to go on from before it."""
        spike = state.detector.spike()
        if spike is None:
            return False
        logger.flush()
        saver.settle()
        return checkpoint.roll_back(job, attempt, state, spike) is not None

    scores = RunScores(job, attempt, agreement, agreed_to_stop, saver.settle)
    questions = StopQuestions(agreement, training.faults.grace)

    def agreed_in_step() -> bool:
        heartbeats.heartbeat(state.step, "train")
        return questions.ask(state.data_step, heartbeats.stop_wanted())

    stepper = Stepper(job, made.sources, state, agreed_in_step)
    virtual = training.virtual_workers if training.deterministic else None
    batches: Batches
    if isinstance(made, BatchMaker):
        batches = online = OnlineBatches(
            made,
            RunFolder(job.folder),
            attempt,
            virtual,
            mesh=state.mesh,
            gather_once=training.parallel.reshard == "step",
            actors=job.rollout_actors != 0,
        )
    else:
        batches, online = made, None
    mesh = state.mesh
    read = functools.partial(
        read_local_batch,
        batches,
        mesh.data_rank,
        mesh.data_size,
        virtual=virtual,
        peers=count_peers(mesh, training.deterministic and training.parallel.by_micro_batch),
    )
    saved, stopped, rolled_back, then = state.step, False, False, Next.GO_ON
    # The attempt that saved this step may have ended before it had measured it. What a run knew
    # when it began is what it may forget.
    begins = state.step == 0 and job.measures_beginning
    if held_out and (begins or wanted.due(state.step, training.steps)):
        missing = dist.get_rank() == 0 and not metrics.is_measured(job.folder, state.step)
        stopped = agreement.any(missing) and not measured()
    comparison = RunComparison(job.folder, job.make_comparison(), agreement, agreed_to_stop, mesh)
    stopped = stopped or not comparison.before(state.model, state.step)
    recorder = StepRecorder(training.profile, job.folder, attempt, dist.get_rank())
    ahead = 0 if online else training.prefetch_steps
    with Prefetch(read, ahead) as prefetch, saver.kept_if_diverged():
        while state.step < training.steps and not stopped:
            if rolled_back := gone_back():
                break
            if (then := scores.after(state.step)) is not Next.GO_ON:
                break
            if state.is_to_skip():
                state.skip()
                continue
            logger.begin_step()
            stepper.begin()
            with recorder.step(state.step + 1):
                with stepper.clock.time_phase("data"):
                    if online:
                        online.prepare(state, lambda: heartbeats.heartbeat(state.step, "sample"))
                    local = prefetch.at(state.data_step)
                state.model.config = job.model_after(state.data_step + 1)
                figures = stepper.take(local)
            if figures is None:
                stopped = True
            elif figures.why_skipped:
                logger.log_skipped(figures)
            else:
                if online:
                    online.carry(state, job.objective, figures.loss.diagnostics)
                logger.log_step(local, figures, stepper.clock)
                if held_out and wanted.due(state.step, training.steps):
                    stopped = not measured()
                if stopped or saver.due(state.step):
                    saved = save()
    recorder.finish()
    questions.settle()
    if saved < state.step and not rolled_back:
        save()
    saver.finish()
    if state.step == training.steps or then is Next.END:
        saver.verify(lambda: heartbeats.heartbeat(state.step, "save"))
    if state.step == training.steps:  # now or never, as the held-out loss
        scores.ask_workers(state.step, to_the_end=True)
    if state.step == training.steps or then is Next.END:
        comparison.after(state.model, state.step)
    logger.close()
    unfinished = state.step < training.steps and then is not Next.END
    return LoopResult(state.step, stopped=unfinished and not rolled_back, rolled_back=rolled_back)


def _measure_held_out(
    job: TrainingJob, state: TrainState, sets: HeldOutSets, agreed_to_stop: Callable[[], bool]
) -> tuple[Loss, dict[int, float]] | None:
    """The held-out loss of the weights, and of each of their averages by its horizon. None: all
    agreed to stop instead."""
    measure = functools.partial(
        evaluate,
        job.objective,
        state.model,
        agreed_to_stop=agreed_to_stop,
        others=state.others,
        mesh=state.mesh,
    )
    loss, averaged = measure(sets), dict[int, float]()
    if loss and sets.beside:
        remembered = measure(sets.beside)
        if remembered is None:
            return None
        loss = replace(loss, by_source={**loss.by_source, **remembered.by_source})
    for horizon in state.averages.horizons if loss else ():
        with state.averages.swapped_in(horizon):
            of_average = measure(sets)
        if of_average is None:
            return None
        averaged[horizon] = of_average.total
    return (loss, averaged) if loss else None


def _first_state(job: TrainingJob, resume_from: str | None, batches: DataHistory) -> TrainState:
    whole = resume_from or job.branch_from
    state = fresh_state(job, find_local_device(), draw=not (whole or job.initial_weights))
    checkpoint.watch_for_spikes(job, state)
    if job.adapter:
        checkpoint.load_base(state, job)
    checkpoint.load_frozen(state, job)
    if whole:
        checkpoint.load(whole, state, job, batches)
        return state
    checkpoint.load_trained(state, job)
    if job.initial_weights:
        checkpoint.load_weights(job.initial_weights, state, job)
    state.model.config = job.model_after(state.data_step)
    return state
