"""What a rank writes down of an attempt: figures, samples, and what was out of the ordinary."""

import logging
import time

import torch.distributed as dist

from trainrig.errors import Diverged
from trainrig.parallel import numerics
from trainrig.tokens.batches import LocalBatch
from trainrig.train.job import TrainingJob
from trainrig.train.loss_table import Loss
from trainrig.train.run import metrics
from trainrig.train.run.metrics import MetricsWriter
from trainrig.train.run.run_folder import RunFolder, TrainingAttempt
from trainrig.train.run.sample_log import SampleLog
from trainrig.train.state import TrainState
from trainrig.train.step import StepFigures

log = logging.getLogger(__name__)


class StepLogger:
    """Of one rank; what is the same on all of them is written by rank 0 alone."""

    def __init__(self, job: TrainingJob, attempt: TrainingAttempt, state: TrainState) -> None:
        """`state` is that which the attempt begins with, and which it changes."""
        self._job, self._attempt, self._state = job, attempt, state
        self._folder = RunFolder(job.folder)
        first = dist.get_rank() == 0
        self._metrics = MetricsWriter(job.folder, attempt.number, state.step) if first else None
        self._samples = SampleLog(job.folder, attempt.number, dist.get_rank())
        self._began = time.perf_counter()
        self._stepped = False  # in this attempt

    def log_step(self, local: LocalBatch, figures: StepFigures) -> None:
        """An update was made, of which this rank had `local`."""
        step = self._state.step
        self._samples.write(step, (micro for micro, real in local.assigned if real))
        self._began, seconds = time.perf_counter(), time.perf_counter() - self._began
        if self._metrics:
            if not self._stepped:
                self._folder.record("first_step", attempt=self._attempt.number, step=step)
                self._stepped = True
            values = {
                **metrics.loss_values("train", figures.loss),
                "train/grad_norm": figures.grad_norm,
                "train/lr": figures.rate,
                "train/tokens": self._state.tokens,
                "speed/step_seconds": seconds,
                "speed/tokens_per_second": figures.tokens / seconds,
                "cluster/workers": dist.get_world_size(),
            }
            self._metrics.write(step, values)

    def log_skipped(self, figures: StepFigures) -> None:
        """No update could be made. Raises Diverged if it was one too many in a row."""
        step, (first, end) = self._state.step, self._state.skipped[-1]
        what = f"data step {end - 1}, after step {step}: {figures.fault}"
        if self._metrics:
            details = {"step": step, "data_step": end - 1, "what": figures.fault}
            self._folder.record("step_skipped", attempt=self._attempt.number, **details)
            log.warning("no update was made (%s)", what)
        allowed = self._job.training.max_skipped_steps
        if end - first > allowed:
            raise Diverged(
                f"{self._job.folder}: no update can be made from {end - first} global batches in a "
                f"row (the last: {what}); training.max_skipped_steps allows {allowed}. Lower "
                "training.optimizer.lr, or see with `trainrig trace` what data it was"
            )

    def log_held_out(self, loss: Loss) -> None:
        """The held-out loss was measured."""
        if self._metrics:
            self._metrics.write(self._state.step, metrics.loss_values("eval", loss))

    def log_numerics(self) -> None:
        """Note what the bits depend on, and say so if it is not what it was; every rank calls it.

        A change suspends the promise of equal bits, not the run.
        """
        mine = numerics.fingerprint()
        all_ranks = [mine] * dist.get_world_size()
        dist.all_gather_object(all_ranks, mine)
        if not self._metrics:
            return
        number = self._attempt.number
        before = [e["found"] for e in self._folder.events() if e["event"] == "numerics"]
        self._folder.record("numerics", attempt=number, found=mine)
        for rank, other in enumerate(all_ranks):
            if difference := numerics.changes(mine, other):
                self._say_changed(f"rank 0 → rank {rank}: {difference}")
        if before and (difference := numerics.changes(before[-1], mine)):
            self._say_changed(difference)

    def _say_changed(self, difference: str) -> None:
        number, step = self._attempt.number, self._state.step
        self._folder.record("numerics_changed", attempt=number, step=step, what=difference[:500])
        log.warning("from step %d on, other bits than before may result (%s)", step, difference)

    def flush(self) -> None:
        """Return once all of it lies in the run folder. Raises ClusterError."""
        self._samples.flush()
        if self._metrics:
            self._metrics.flush()

    def close(self) -> None:
        """Flush, and write no more."""
        self._samples.close()
        if self._metrics:
            self._metrics.close()
