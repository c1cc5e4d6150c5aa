"""The training loop of one rank. It does not use Ray, only ranks, batches and storage."""

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta

import torch.distributed as dist

from trainrig.parallel import numerics
from trainrig.parallel.float8 import check_float8
from trainrig.parallel.mesh import find_local_device
from trainrig.parallel.precision import set_products
from trainrig.parallel.sharding.deterministic_reduction import count_peers
from trainrig.parallel.stop_consensus import StopConsensus, StopQuestions
from trainrig.processes.heartbeats import UNSUPERVISED, HeartbeatSink
from trainrig.tokens.batches import Batches, DataHistory, LocalBatch, read_local_batch
from trainrig.tokens.prefetch import Prefetch
from trainrig.train import checkpoint
from trainrig.train.evaluations import RunComparison
from trainrig.train.held_out_loss import HeldOutSets, evaluate
from trainrig.train.loss_table import Loss
from trainrig.train.run import metrics
from trainrig.train.run.run_folder import RunFolder, TrainingAttempt
from trainrig.train.run.step_logger import StepLogger, StepRecorder
from trainrig.train.run_scores import Next, RunScores
from trainrig.train.state import TrainState, build_fresh_state
from trainrig.train.step import Stepper
from trainrig.train.training_job import OnlineBatches, OnlineSource, TrainingJob


@dataclass(frozen=True)
class LoopResult:
    """Result of an attempt that ended without an error."""

    step: int  # updates made, all of them saved
    stopped: bool  # True if the run was asked to stop before its last step


def train(
    job: TrainingJob,
    attempt: TrainingAttempt,
    resume_from: str | None,
    heartbeats: HeartbeatSink = UNSUPERVISED,
) -> LoopResult:
    """Train from the checkpoint `resume_from` to the end of `job`. Every rank must call it.

    The process group must be initialised. The losses depend only on the job and its data, not on
    how often the run was stopped and resumed; in deterministic mode, not on the number of ranks
    either. Returns early if all ranks agree to stop or if a loss spike needs a roll-back.

    Args:
        job: The run.
        attempt: The attempt that this process belongs to.
        resume_from: Path of a checkpoint; None starts from the initial weights.
        heartbeats: Receives progress reports and says whether a stop is requested.
    """
    job = job.resolve(find_local_device())
    training = job.training
    training.check_workers(dist.get_world_size())
    numerics.settle(training.threads, training.deterministic)
    set_products(training.precision)
    check_float8(training.precision)
    return _RankLoop(job, attempt, resume_from, heartbeats).run()


class _StopRequests:
    """Heartbeats to the supervisor, and the collective decision whether to stop."""

    def __init__(self, job: TrainingJob, state: TrainState, heartbeats: HeartbeatSink) -> None:
        training = job.training
        self.consensus = StopConsensus(timedelta(seconds=training.collective_timeout))
        self._questions = StopQuestions(self.consensus, training.faults.grace)
        self._state = state
        self._heartbeats = heartbeats

    def report_phase(self, doing: str) -> None:
        """Report to the supervisor that this rank is in the phase `doing`."""
        self._heartbeats.heartbeat(self._state.step, doing)

    def ask(self, doing: str) -> bool:
        """Return whether all ranks have agreed to stop. Collective: every rank must call it."""
        self.report_phase(doing)
        return self.consensus.any(self._heartbeats.stop_wanted())

    def agree_to_stop_in_step(self) -> bool:
        """Return whether all ranks have agreed to stop before the next micro-batch.

        Usually, the ranks agree only once a step.
        """
        self.report_phase("train")
        return self._questions.ask(self._state.data_step, self._heartbeats.stop_wanted())

    def settle(self) -> None:
        """Wait for the answers that have not arrived yet."""
        self._questions.settle()


class _RankLoop:
    """One rank's part in one attempt: its steps, and the measurements and saves between them."""

    def __init__(
        self,
        job: TrainingJob,
        attempt: TrainingAttempt,
        resume_from: str | None,
        heartbeats: HeartbeatSink,
    ) -> None:
        """Load the state. Collective, with the arguments of `train`."""
        heartbeats.heartbeat(0, "load")
        made = job.make_batches()
        self._held_out = job.make_held_out()
        self._job = job
        self._attempt = attempt
        self._training = job.training
        self._state = state = _build_first_state(job, resume_from, made)
        self._stops = stops = _StopRequests(job, state, heartbeats)
        self._logger = StepLogger(job, attempt, state)
        self._logger.log_numerics()
        self._logger.log_placement()
        self._saver = checkpoint.Saver(RunFolder(job.folder), attempt, job, made)
        self._saved = state.step
        self._stopped = False
        self._rolled_back = False
        self._then = Next.GO_ON  # the evaluation scores' decision on how the run continues
        settle = self._saver.settle
        self._scores = RunScores(job, attempt, stops.consensus, stops.ask, settle)
        self._stepper = Stepper(job, made.sources, state, stops.agree_to_stop_in_step)
        self._comparison = RunComparison(
            job.folder, job.make_comparison(), stops.consensus, stops.ask, state.mesh
        )
        self._recorder = StepRecorder(job.training.profile, job.folder, attempt, dist.get_rank())
        self._online: OnlineBatches | None = None
        if isinstance(made, OnlineSource):
            made = self._online = made.open(job, attempt.number, state)
        self._read = self._make_reader(made)

    def _make_reader(self, batches: Batches) -> Callable[[int], LocalBatch]:
        """Return the function that reads this rank's part of the batch of a given step."""
        training = self._training
        mesh = self._state.mesh
        return functools.partial(
            read_local_batch,
            batches,
            mesh.data_rank,
            mesh.data_size,
            virtual=training.virtual_limit,
            peers=count_peers(mesh, training.deterministic and training.parallel.by_micro_batch),
        )

    @property
    def _at_the_end(self) -> bool:
        return self._state.step == self._training.steps

    def run(self) -> LoopResult:
        """Train the remaining steps, or until all ranks agree to stop; then save."""
        self._measure_first()
        ahead = 0 if self._online else self._training.prefetch_steps
        with Prefetch(self._read, ahead) as prefetch, self._saver.keep_if_diverged():
            while self._should_continue():
                if self._state.is_to_skip():
                    self._state.skip()
                else:
                    self._take_step(prefetch)
        self._finish()
        unfinished = not self._at_the_end and self._then is not Next.END
        stopped = unfinished and not self._rolled_back
        return LoopResult(self._state.step, stopped)

    def _measure_first(self) -> None:
        """Measure what an earlier attempt may have left unmeasured."""
        job = self._job
        state = self._state
        # Held-out loss at step 0: the baseline for measuring forgetting.
        begins = state.step == 0 and job.measures_beginning
        if self._held_out and (begins or self._held_out_due):
            missing = dist.get_rank() == 0 and not metrics.is_measured(job.folder, state.step)
            self._stopped = self._stops.consensus.any(missing) and not self._measure()
        if not self._stopped:
            self._stopped = not self._comparison.record_before(state.model, state.step)

    @property
    def _held_out_due(self) -> bool:
        return self._training.held_out.due(self._state.step, self._training.steps)

    def _should_continue(self) -> bool:
        """Return whether to train another step; if not, record the reason."""
        if self._at_the_end or self._stopped:
            return False
        if self._roll_back():
            self._rolled_back = True
            return False
        self._then = self._scores.decide_after(self._state.step)
        return self._then is Next.GO_ON

    def _roll_back(self) -> bool:
        """Return whether a loss spike has ended and the run must roll back to before it."""
        spike = self._state.detector.find_spike()
        if spike is None:
            return False
        self._logger.flush()
        self._saver.settle()
        return checkpoint.roll_back(self._job, self._attempt, self._state, spike) is not None

    def _take_step(self, prefetch: Prefetch[LocalBatch]) -> None:
        state = self._state
        stepper = self._stepper
        self._logger.begin_step()
        stepper.begin()
        with self._recorder.record_step(state.step + 1):
            with stepper.clock.time_phase("data"):
                if self._online:
                    self._online.prepare(lambda: self._stops.report_phase("sample"))
                local = prefetch.at(state.data_step)
            state.model.config = self._job.model_after(state.data_step + 1)
            figures = stepper.take(local)
        if figures is None:
            self._stopped = True
        elif figures.why_skipped:
            self._logger.log_skipped(figures)
        else:
            if self._online:
                self._online.carry(figures.loss.diagnostics)
            self._logger.log_step(local, figures, stepper.clock)
            if self._held_out and self._held_out_due:
                self._stopped = not self._measure()
            if self._stopped or self._saver.due(state.step):
                self._save()

    def _measure(self) -> bool:
        """Measure and log the held-out loss; return False if all ranks agreed to stop instead."""
        if self._held_out is None:
            return True
        # A stop is ignored after the last step: once that step is saved, the run is complete and no
        # later attempt would measure it.
        last = self._at_the_end
        began = time.perf_counter()
        found = _measure_held_out(
            self._job,
            self._state,
            self._held_out,
            lambda: self._stops.ask("evaluate") and not last,
        )
        if found:
            self._logger.log_held_out(*found, seconds=time.perf_counter() - began)
        return found is not None

    def _save(self) -> None:
        self._logger.flush()
        self._stops.report_phase("save")
        began = time.perf_counter()
        self._saver.save(self._state)
        self._logger.log_save(time.perf_counter() - began)
        self._saved = self._state.step

    def _finish(self) -> None:
        """Save unsaved updates; at the end of a run, also make the final measurements."""
        state = self._state
        self._recorder.finish()
        self._stops.settle()
        if self._saved < state.step and not self._rolled_back:
            self._save()
        self._saver.finish()
        complete = self._at_the_end or self._then is Next.END
        if complete:
            self._saver.verify(lambda: self._stops.report_phase("save"))
        if self._at_the_end:
            self._scores.ask_workers(state.step, to_the_end=True)
        if complete:
            self._comparison.record_after(state.model, state.step)
        self._logger.close()


def _measure_held_out(
    job: TrainingJob, state: TrainState, sets: HeldOutSets, agreed_to_stop: Callable[[], bool]
) -> tuple[Loss, dict[int, float]] | None:
    """Measure the held-out loss of the weights, and of each average, keyed by its horizon.

    Returns None if all ranks agreed to stop instead.
    """
    measure = functools.partial(
        evaluate,
        job.objective,
        state.model,
        agreed_to_stop=agreed_to_stop,
        others=state.others,
        mesh=state.mesh,
    )
    loss = measure(sets)
    averaged = dict[int, float]()
    if loss and sets.remembered:
        remembered = measure(sets.remembered)
        if remembered is None:
            return None
        loss = replace(loss, by_source={**loss.by_source, **remembered.by_source})
    for horizon in state.averages.horizons if loss else ():
        with state.averages.swap_in(horizon):
            of_average = measure(sets)
        if of_average is None:
            return None
        averaged[horizon] = of_average.total
    return (loss, averaged) if loss else None


def _build_first_state(
    job: TrainingJob, resume_from: str | None, batches: DataHistory
) -> TrainState:
    whole = resume_from or job.branch_from
    state = build_fresh_state(job, find_local_device(), draw=not (whole or job.initial_weights))
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
