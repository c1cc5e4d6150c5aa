"""Log of an attempt on one rank: metrics, samples, unusual events, and profiles of chosen steps.

Each rank of each attempt writes a profile `profile/attempt-0001/rank-00000.trace.json.gz` in
Chrome's format (open it with ui.perfetto.dev). On a GPU, it also writes
`rank-00000.memory.pickle`, the history of the allocator's blocks (open it with
docs.pytorch.org/memory_viz). A CPU has no such history; there, the trace has the allocated
memory at each allocation. Profiling does not change the results of a run.
"""

import contextlib
import logging
import resource
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from trainrig import flops, hardware, storage
from trainrig.errors import ClusterError, ConfigError, Diverged
from trainrig.models.architecture.encoder_configs import EncoderDecoderConfig
from trainrig.objectives.objective_interface import Watchful
from trainrig.optim.noise_scale import NoiseEstimate, RunningNoiseScale
from trainrig.parallel import numerics
from trainrig.parallel.mesh import count_spanning, find_node_name
from trainrig.parallel.phase_clock import PhaseClock
from trainrig.tokens.batches import IDS, TARGETS, TOKENS, LocalBatch
from trainrig.train.held_out_loss import StepProfile
from trainrig.train.loss_table import Loss
from trainrig.train.run import metrics
from trainrig.train.run.metrics import MetricsWriter
from trainrig.train.run.run_folder import RunFolder, TrainingAttempt
from trainrig.train.run.step_data import SampleLog
from trainrig.train.state import TrainState
from trainrig.train.step import StepFigures
from trainrig.train.training_job import TrainingJob

log = logging.getLogger(__name__)
WATCHED_STEPS = 10  # over which diagnostics are averaged before an objective may warn


class StepLogger:
    """Logger of one rank's steps; rank 0 alone writes values that are equal on all ranks."""

    def __init__(self, job: TrainingJob, attempt: TrainingAttempt, state: TrainState) -> None:
        """Open the logs; `state` is the state of the attempt, which training changes in place."""
        self._job = job
        self._attempt = attempt
        self._state = state
        self._folder = RunFolder(job.folder)
        first = dist.get_rank() == 0
        self._metrics = MetricsWriter(job.folder, attempt.number, state.step) if first else None
        speaks = state.mesh.is_reporter
        self._samples = SampleLog(job.folder, attempt.number, dist.get_rank()) if speaks else None
        # Start of the current step; end of the update before it, for the wall time.
        self._began = self._ended = time.perf_counter()
        self._stepped = False  # True once this attempt has made an update
        self._noise = RunningNoiseScale()
        if first:
            for line in metrics.read_series(job.folder):
                if line["step"] <= state.step:
                    self._hear_noise(line)
        self._utilisation = Utilisation(job) if first else None
        self._newest: deque[Mapping[str, float]] = deque(maxlen=WATCHED_STEPS)  # newest diagnostics
        self._warned = False  # True once the objective has warned in this attempt

    def begin_step(self) -> None:
        """Mark the beginning of a step."""
        self._began = time.perf_counter()

    def log_step(self, local: LocalBatch, figures: StepFigures, clock: PhaseClock) -> None:
        """Log the update just made from `local`, whose phases `clock` timed."""
        step = self._state.step
        if self._samples:
            self._samples.write(step, (micro for micro, real in local.assigned if real))
        now = time.perf_counter()
        seconds = now - self._began
        wall = now - self._ended
        self._ended = now
        phases = clock.take()
        if self._metrics:
            if not self._stepped:
                self._folder.record("first_step", attempt=self._attempt.number, step=step)
                self._stepped = True
            values = {
                **metrics.list_loss_values("train", figures.loss),
                **metrics.measure_expert_loads(
                    figures.loss, self._job.training.metrics.layers_due(step)
                ),
                "train/grad_norm": figures.grad_norm,
                "train/lr": figures.rate,
                "train/tokens": self._state.tokens,
                "train/data_step": self._state.data_step - 1,
                "train/step_seconds": seconds,
                "train/wall_seconds": wall,
                "train/tokens_per_second": figures.tokens / seconds,
                "train/worker_tokens_per_second": figures.tokens / seconds / dist.get_world_size(),
                "cluster/workers": dist.get_world_size(),
                **figures.measured,
            }
            if clock.measured:
                values |= {f"time/{name}": share / seconds for name, share in phases.items()}
            if self._utilisation and (share := self._utilisation.compute(local, seconds)):
                values["train/mfu"] = share
            self._hear_noise(values)
            if (scale := self._noise.estimate()) and "noise/trace" in values:
                values["noise/scale"] = scale
            if self._job.training.metrics.due(step):
                values["memory/peak_gib"] = measure_peak_memory() / 2**30
            self._metrics.write(step, values)
            self._watch(step, figures.loss.diagnostics)

    def _watch(self, step: int, diagnostics: Mapping[str, float]) -> None:
        """Log a warning of the objective, once, about its mean diagnostics over recent steps."""
        objective = self._job.objective
        if self._warned or not isinstance(objective, Watchful):
            return
        self._newest.append(diagnostics)
        if len(self._newest) < WATCHED_STEPS:
            return
        means = {
            name: sum(diagnosed[name] for diagnosed in self._newest) / WATCHED_STEPS
            for name in diagnostics
            if all(name in diagnosed for diagnosed in self._newest)
        }
        if problem := objective.find_warning(means):
            self._warned = True
            number = self._attempt.number
            self._folder.record("objective_warning", attempt=number, step=step, what=problem)
            log.warning("%s: step %d: %s", self._job.folder, step, problem)

    def _hear_noise(self, line: Mapping[str, Any]) -> None:
        if line.get("noise/trace") is not None:
            found = NoiseEstimate(line["noise/gradient_squared"], line["noise/trace"])
            self._noise.add(found)

    def log_skipped(self, figures: StepFigures) -> None:
        """Log that no update was made. Raise Diverged after too many consecutive ones.

        Only steps with a loss or gradient that is not finite count for that.
        """
        step = self._state.step
        (first, end) = self._state.skipped[-1]
        first = max(
            [first, *(skipped.end for skipped in self._state.skip_ranges if skipped.end < end)]
        )
        what = f"data step {end - 1}, after step {step}: {figures.why_skipped}"
        if self._metrics:
            details = {"step": step, "data_step": end - 1, "what": figures.why_skipped}
            self._folder.record("step_skipped", attempt=self._attempt.number, **details)
            log.warning("no update was made (%s)", what)
        allowed = self._job.training.max_skipped_steps
        if figures.outlier is None and end - first > allowed:
            raise Diverged(
                f"{self._job.folder}: no update can be made from {end - first} global "
                f"batches in a row (the last: {what}); training.max_skipped_steps allows "
                f"{allowed}. Lower training.optimizer.lr, or inspect the data with "
                "`trainrig trace`"
            )

    def log_held_out(self, loss: Loss, averaged: Mapping[int, float], seconds: float) -> None:
        """Log the held-out loss, measured in `seconds`; `averaged`: loss of each average."""
        if self._metrics:
            values = metrics.list_loss_values("eval", loss) | {"train/held_out_seconds": seconds}
            values |= {f"averages/{horizon}/loss": value for horizon, value in averaged.items()}
            self._metrics.write(self._state.step, values)

    def log_save(self, seconds: float) -> None:
        """Log that training waited `seconds` for the copy of the state for a checkpoint."""
        if self._metrics:
            self._metrics.write(self._state.step, {"train/save_seconds": seconds})

    def log_numerics(self) -> None:
        """Record what the bits of the results depend on; warn of changes. Collective.

        After a change, results may no longer be bit-identical; the run continues.
        """
        training = self._job.training
        mine = numerics.describe_numerics(
            training.compile, training.precision.compute, self._job.describe_attention()
        )
        all_ranks = [mine] * dist.get_world_size()
        dist.all_gather_object(all_ranks, mine)
        if not self._metrics:
            return
        number = self._attempt.number
        before = [e["found"] for e in self._folder.read_events() if e["event"] == "numerics"]
        self._folder.record("numerics", attempt=number, found=mine)
        for rank, other in enumerate(all_ranks):
            if difference := numerics.describe_changes(mine, other):
                self._say_changed(f"rank 0 → rank {rank}: {difference}")
        if before and (difference := numerics.describe_changes(before[-1], mine)):
            self._say_changed(difference)

    def log_placement(self) -> None:
        """Warn if ranks that share layers are on several nodes, with the traffic. Collective."""
        tensor = self._job.training.parallel.tensor
        if tensor is None:
            return
        nodes = [""] * dist.get_world_size()
        dist.all_gather_object(nodes, find_node_name())
        spanning = count_spanning(nodes, tensor.ranks)
        if not spanning or not self._metrics:
            return
        sent = tensor.count_sent(self._job.model, self._job.training.precision.bytes)
        groups = len(nodes) // tensor.ranks
        number = self._attempt.number
        self._folder.record(
            "tensor_spans_nodes", attempt=number, groups=spanning, of=groups, bytes_per_token=sent
        )
        log.warning(
            "tensor groups that span nodes: %d of %d; each worker of these groups sends "
            "%s bytes per token of its replica, some of them between nodes; give each "
            "node workers for whole groups of %d, or lower parallel.tensor.ranks",
            *(spanning, groups, f"{sent:,.0f}", tensor.ranks),
        )

    def _say_changed(self, difference: str) -> None:
        number = self._attempt.number
        step = self._state.step
        self._folder.record("numerics_changed", attempt=number, step=step, what=difference[:500])
        log.warning(
            "from step %d on, results may not be bit-identical to before (%s)", step, difference
        )

    def flush(self) -> None:
        """Wait until everything is stored in the run folder. Raise ClusterError if that fails."""
        if self._samples:
            self._samples.flush()
        if self._metrics:
            self._metrics.flush()

    def close(self) -> None:
        """Flush and close the logs."""
        if self._samples:
            self._samples.close()
        if self._metrics:
            self._metrics.close()


class Utilisation:
    """Model FLOPs utilisation of a run's devices (Chowdhery et al. 2022, arXiv:2204.02311, B).

    It counts the forward and backward FLOPs of a step by `trainrig.flops`, without recomputation
    and without the half of attention that a causal model does not see. All devices are assumed to
    be like this rank's.
    """

    def __init__(self, job: TrainingJob) -> None:
        # With other models, not every pass runs forward and backward through this model alone.
        alone = not (job.adapter or job.frozen or job.trained)
        plain = job.objective.single_pass and alone
        self._model = job.model if plain else None
        self._peak = 0.0  # FLOP/s of one worker
        self._of_row = dict[tuple[int, int], float]()  # FLOPs of a row, by input and target length
        offers = hardware.load()
        device = offers.devices[hardware.identify_local_device(offers)]
        try:
            peak = device.find_peak(job.training.precision.peak)
        except ConfigError:  # the table has no value for this precision
            self._model = None
        else:
            self._peak = peak * (1 if device.accelerator else job.training.threads)

    def compute(self, local: LocalBatch, seconds: float) -> float | None:
        """Return the share of the peak FLOPs of all workers in a step of `seconds`.

        `local`: this rank's part of the batch. Returns None if the share is not known.
        """
        if self._model is None or seconds <= 0:
            return None
        # Micro-batches of a mixture differ in width; this rank's stand for all.
        shapes = [
            (*micro.arrays[IDS].shape, micro.arrays[TARGETS].shape[1])
            for micro, _ in local.assigned
        ]
        places = sum(rows * length for rows, length, _ in shapes) / len(shapes)
        predicted = local.denominators[TOKENS] / (places * local.micro_batches)
        mean = sum(self._count_flops(predicted, *shape) for shape in shapes) / len(shapes)
        return mean * local.micro_batches / (seconds * self._peak * dist.get_world_size())

    def _count_flops(self, predicted: float, rows: int, length: int, written: int) -> float:
        """Return the FLOPs of a micro-batch with `rows` rows.

        `length`: input tokens of a row; `written`: target tokens of a row; `predicted`: share of
        the tokens for which a generator computes logits.
        """
        model = self._model
        assert model is not None
        if model.generator_model is not None:
            return rows * length * flops.count_detection_flops(model, length, predicted)
        # cached: counting takes longer than logging a step
        if (length, written) not in self._of_row:
            if isinstance(model, EncoderDecoderConfig):
                found = flops.count_encoder_decoder_flops(model, length, written)
            else:
                of_token = flops.count_token_flops(
                    model, length
                ).training + flops.count_further_flops(model, length)
                found = length * of_token
            self._of_row[length, written] = found
        return rows * self._of_row[length, written]


def measure_peak_memory() -> int:
    """Return the peak memory of this rank in bytes: of its GPU if there is one, or of the host."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_reserved()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


PROFILE_FOLDER = "profile"
HISTORY = 200_000  # GPU allocations kept in the history, with their call sites


class StepRecorder:
    """Profiler of the chosen steps of one rank in one attempt; inactive on other ranks."""

    def __init__(
        self, profile: StepProfile | None, folder: str, attempt: TrainingAttempt, rank: int
    ) -> None:
        chosen = profile is not None and (profile.ranks is None or rank in profile.ranks)
        self._profile = profile if chosen else None
        place = storage.join(folder, PROFILE_FOLDER, f"attempt-{attempt.number:04d}")
        self._place = storage.join(place, f"rank-{rank:05d}")
        self._trace: torch.profiler.profile | None = None

    @contextlib.contextmanager
    def record_step(self, number: int) -> Iterator[None]:
        """Profile the block, which makes update `number`, if it is one of the chosen steps.

        Work between two chosen steps is recorded too, outside of their named ranges. If the block
        raises, no trace is written.
        """
        if self._profile is None:
            yield
            return
        import torch

        first, last = self._profile.steps
        if self._trace is None and first <= number <= last:
            self._begin(self._profile)
        if self._trace is None:
            yield
            return
        with torch.profiler.record_function(f"step {number}"):
            yield
        if number >= last:
            self.finish()

    def _begin(self, profile: StepProfile) -> None:
        import torch

        if torch.cuda.is_available():
            torch.cuda.memory._record_memory_history(max_entries=HISTORY)
        self._trace = torch.profiler.profile(
            profile_memory=True, record_shapes=True, with_stack=profile.stacks
        )
        self._trace.start()

    def finish(self) -> None:
        """Stop the profiler, if it runs, and write its files; storage errors are only logged."""
        if self._trace is None:
            return
        import torch

        trace = self._trace
        self._trace = None
        trace.stop()
        with tempfile.TemporaryDirectory(prefix="trainrig-") as folder:
            written = Path(folder, "trace.json.gz")
            trace.export_chrome_trace(str(written))
            found = [written]
            if torch.cuda.is_available():
                found.append(Path(folder, "memory.pickle"))
                torch.cuda.memory._dump_snapshot(str(found[-1]))  # type: ignore[no-untyped-call]
                torch.cuda.memory._record_memory_history(enabled=None)
            for path in found:
                self._store(path)

    def _store(self, path: Path) -> None:
        place = f"{self._place}.{path.name}"
        try:
            storage.write(place, path.read_bytes())
        except (OSError, ClusterError) as problem:
            log.warning("%s: could not be written: %s", place, problem)
