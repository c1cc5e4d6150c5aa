"""Saving of checkpoints during training, and the roll-back to one from before a loss spike.

A save copies the state to memory first; then a thread writes it. The ranks' threads communicate
over a process group of their own: each writes its part; rank 0 gathers all checksums, writes the
other files, and the manifest last. They also agree on any error.

For a roll-back, rank 0 takes a new attempt (run_folder.py). Its record makes every reader ignore
the checkpoints after the one to resume from, and names the data to skip. Then the current
attempt ends, and the next one resumes from there as after any other end.
"""

import contextlib
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch.distributed as dist
from torch import Tensor

from trainrig import storage
from trainrig.config import extract_identity
from trainrig.errors import ClusterError, Diverged, TrainrigError
from trainrig.parallel import numerics
from trainrig.tokens.batches import DataHistory
from trainrig.tokens.special_tokens import TokenizerFiles
from trainrig.train.checkpoint import checkpoint_metadata, rank_file, tensor_index
from trainrig.train.checkpoint.manifest import (
    BROUGHT,
    STATE,
    TOKENIZER,
    CheckpointManifest,
    clean_up,
    commit,
    find_damage,
    list_committed,
    mark_damaged,
    name_checkpoint_folder,
)
from trainrig.train.run.run_folder import RunFolder, TrainingAttempt
from trainrig.train.spikes import DataRange, Spike, SpikeDetector
from trainrig.train.state import TrainState
from trainrig.train.training_job import TrainingJob

log = logging.getLogger(__name__)
LONGEST_PROBLEM = 500  # characters of a problem in an event, to keep its line short


@dataclass(frozen=True)
class Snapshot:
    """Non-tensor part of a save, as it was when `save` was called."""

    step: int
    entries: bytes  # content of state.json; empty except on rank 0
    began: float  # time.perf_counter() when `save` was called
    stall_seconds: float  # seconds that training waited


class Saver:
    """Writer of one rank's checkpoints in one attempt. All ranks must call the same methods."""

    def __init__(
        self, folder: RunFolder, attempt: TrainingAttempt, job: TrainingJob, batches: DataHistory
    ) -> None:
        """Create the process group. Collective. `batches` are those that the run is trained on."""
        self._folder = folder
        self._attempt = attempt
        self._job = job
        self._batches = batches
        self._settings = job.training.checkpoints
        self._rank = dist.get_rank()
        self._world = dist.get_world_size()
        # It keeps torch's default timeout of 30 minutes: storage calls are retried for minutes.
        self._group = dist.new_group(backend="gloo")
        self._staged: rank_file.StagedFile | None = None
        self._index: dict[str, tensor_index.IndexedTensor] = {}  # index of the files of all ranks
        # Path of the last complete checkpoint, and its files that this rank verifies.
        self._written: tuple[str, dict[str, tensor_index.FileChunks]] | None = None
        self._thread: threading.Thread | None = None
        self._failures = 0  # consecutive failed saves
        self._problem = ""  # text of the last failure, the same on all ranks
        self._broken: Exception | None = None  # error that ended this rank's thread

    def due(self, step: int) -> bool:
        """Return whether the run file wants a checkpoint after `step`."""
        return self._job.training.saves_after(step)

    def save(self, state: TrainState) -> None:
        """Write a checkpoint of `state`; return once it is copied to memory.

        First waits for an earlier save that is still being written. Raises ClusterError if more
        consecutive saves failed than the run file allows.
        """
        began = time.perf_counter()
        self._wait()
        if self._failures > self._settings.failures:
            raise ClusterError(f"{self._problem}; saves that failed in a row: {self._failures}")
        tensors = state.rows(state.list_counted_tensors())
        mesh = state.mesh
        parts = rank_file.find_written(tensors, mesh.lead)
        if self._staged is None:
            self._staged = rank_file.StagedFile(parts)
            self._index = rank_file.index_stages(tensors, mesh)
            mine = {n: (first, _count_rows(part)) for n, (part, first) in parts.items()}
            assert mine == tensor_index.find_rows(self._index, self._rank), (
                "not as the index has them"
            )
        self._staged.fill(parts)
        entries = (
            json.dumps(self._build_entries(state), indent=1).encode() if self._rank == 0 else b""
        )
        snapshot = Snapshot(state.step, entries, began, time.perf_counter() - began)
        self._thread = threading.Thread(
            target=self._run, args=(self._staged, snapshot), name="checkpoint", daemon=True
        )
        self._thread.start()

    def settle(self) -> None:
        """Wait until no checkpoint is being written, whether or not the last save succeeded."""
        self._wait()

    def finish(self) -> None:
        """Wait until the last save is complete. Raise ClusterError if it failed."""
        self._wait()
        if self._failures:
            raise ClusterError(self._problem)

    def verify(self, go_on: Callable[[], None]) -> None:
        """Read the last checkpoint back and verify it, each rank its own file. Collective.

        `go_on` is called between reads. Does nothing if nothing was saved. Raises on all ranks
        alike, and marks the checkpoint as damaged before raising DamagedCheckpoint.
        """
        if self._written is None:
            return
        target, mine = self._written
        sums: checkpoint_metadata.Sums = {}
        problem: TrainrigError | None = None
        try:
            sums = checkpoint_metadata.read_back(target, mine, go_on)
        except TrainrigError as error:
            problem = error
        outcomes = [(sums, problem)] * self._world
        dist.all_gather_object(outcomes, (sums, problem), group=self._group)
        problem = next((error for _, error in outcomes if error), None)
        if self._rank == 0:
            if isinstance(problem, tensor_index.DamagedCheckpoint):
                mark_damaged(target, str(problem))
            elif problem is None:
                try:
                    checkpoint_metadata.record_verified(
                        target, {n: s for found, _ in outcomes for n, s in found.items()}
                    )
                # the driver then verifies the whole checkpoint itself
                except (OSError, TrainrigError) as error:
                    log.warning("%s: could not record the verification: %s", target, error)
        dist.barrier(self._group)  # no rank may report the end of the run before the record exists
        if problem:
            raise problem

    @contextlib.contextmanager
    def keep_if_diverged(self) -> Iterator[None]:
        """Complete the last save if the block ends with Diverged.

        All ranks end then, and the user continues from the last checkpoint.
        """
        try:
            yield
        except Diverged:
            self._wait()
            raise

    def _wait(self) -> None:
        if self._thread:
            self._thread.join()
            self._thread = None
        if self._broken:
            raise ClusterError(
                f"{self._folder.checkpoints}: the ranks lost their connection while saving: "
                f"{self._broken}"
            ) from self._broken

    def _build_entries(self, state: TrainState) -> dict[str, object]:
        """Return the content of state.json: the non-tensor state, and a description of the run."""
        scale = state.loss_scale
        return {
            "step": state.step,
            "data_step": state.data_step,
            "tokens": state.tokens,
            "skipped": [list(skipped) for skipped in state.skipped],
            **({} if scale is None else {"loss_scale": [scale.factor, scale.clean]}),
            **({"carried": state.carried} if state.carried else {}),
            "spikes": state.detector.build_entries(),
            "seed": self._job.training.seed,
            "data": self._batches.data_before(state.data_step),
            "model": self._job.model_after(state.data_step).model_dump(mode="json"),
            "context": self._job.context_before(state.data_step),
            **(
                {"adapter": checkpoint_metadata.build_adapter_entries(self._job.adapter)}
                if self._job.adapter
                else {}
            ),
            "training": extract_identity(self._job.training),
            "numerics": numerics.describe_numerics(
                self._job.training.compile,
                self._job.training.precision.compute,
                self._job.describe_attention(),
            ),
        }

    def _run(self, staged: rank_file.StagedFile, snapshot: Snapshot) -> None:
        try:
            size, problem = self._write_to(self._folder.checkpoints, staged, snapshot, kept=True)
            self._failures = self._failures + 1 if problem else 0
            self._problem = problem
            if problem:
                self._record("checkpoint_failed", step=snapshot.step, problem=problem)
                return
            self._record(
                "checkpoint",
                step=snapshot.step,
                stall_seconds=round(snapshot.stall_seconds, 4),
                seconds=round(time.perf_counter() - snapshot.began, 4),
                bytes=size,
            )
            self._clean_up(self._folder.checkpoints)
            if second := self._settings.copy_to:
                _, problem = self._write_to(second, staged, snapshot)
                if problem:
                    self._record("checkpoint_copy_failed", step=snapshot.step, problem=problem)
                else:
                    self._clean_up(second)
        except Exception as error:  # `_wait` raises it
            self._broken = error

    def _write_to(
        self, place: str, staged: rank_file.StagedFile, snapshot: Snapshot, kept: bool = False
    ) -> tuple[int, str]:
        """Write a checkpoint below `place` with all ranks; return its bytes and its problem or "".

        `kept`: whether it is the one for `verify` to check.
        """
        target = name_checkpoint_folder(place, snapshot.step, self._attempt.number)
        mine = rank_file.tensor_file_name(self._rank)
        outcome = _try_action(
            lambda: staged.write(storage.join(target, mine)), f"rank {self._rank}"
        )
        outcomes: list[tensor_index.FileChunks | str] = [""] * self._world
        dist.all_gather_object(outcomes, outcome, group=self._group)
        problem = next((outcome for outcome in outcomes if isinstance(outcome, str)), "")
        files = {
            rank_file.tensor_file_name(rank): chunks
            for rank, chunks in enumerate(outcomes)
            if isinstance(chunks, tensor_index.FileChunks)
        }
        answer = [problem]
        if self._rank == 0 and not problem:
            done = _try_action(lambda: self._commit(target, snapshot, files), "rank 0")
            answer = [done if isinstance(done, str) else ""]
        dist.broadcast_object_list(answer, src=0, group=self._group)
        problem = answer[0]
        if problem:
            _remove(target, [mine, *([STATE, TOKENIZER, BROUGHT] if self._rank == 0 else [])])
            problem = f"{target}: could not be saved: {problem}"
        elif kept:
            own = files if self._rank == 0 else {mine: files[mine]}
            others = {rank_file.tensor_file_name(rank) for rank in range(1, self._world)}
            self._written = target, {n: c for n, c in own.items() if n not in others or n == mine}
        return sum(chunks.bytes for chunks in files.values()), problem

    def _commit(
        self, target: str, snapshot: Snapshot, files: dict[str, tensor_index.FileChunks]
    ) -> tensor_index.FileChunks:
        """Write all files without tensors, and the manifest last."""
        texts = {STATE: snapshot.entries, TOKENIZER: self._job.tokenizer.encode()}
        if self._job.beside:
            texts[BROUGHT] = TokenizerFiles(self._job.tokenizer, self._job.beside).brought
        for name, data in texts.items():
            files[name] = tensor_index.write_file(storage.join(target, name), memoryview(data))
        manifest = CheckpointManifest(
            step=snapshot.step, attempt=self._attempt.number, files=files, tensors=self._index
        )
        commit(target, manifest)
        return files[STATE]

    def _clean_up(self, place: str) -> None:
        if self._rank == 0:
            try:
                training = self._job.training
                clean_up(self._folder, place, self._attempt, self._settings, training)
            except (OSError, TrainrigError) as error:  # the next clean-up tries the rest again
                log.warning("%s: could not be cleaned up: %s", place, error)

    def _record(self, event: str, **details: object) -> None:
        if self._rank == 0:
            short = {
                k: v[:LONGEST_PROBLEM] if isinstance(v, str) else v for k, v in details.items()
            }
            self._folder.record(event, attempt=self._attempt.number, **short)
            if "problem" in short:
                log.warning("%s", short["problem"])


def _count_rows(part: Tensor) -> int:
    return part.shape[0] if part.ndim else 1


def _try_action(
    action: Callable[[], tensor_index.FileChunks], who: str
) -> tensor_index.FileChunks | str:
    """Return the result of `action`, or its error in words: the other ranks wait for either."""
    try:
        return action()
    except (OSError, TrainrigError) as error:
        return f"{who}: {error}"
    except Exception as error:
        log.exception("%s: while writing a checkpoint", who)
        return f"{who}: {type(error).__name__}: {error}"


def _remove(target: str, names: list[str]) -> None:
    """Delete the files of a failed save."""
    for name in names:
        with contextlib.suppress(OSError, TrainrigError):  # this may fail too where writing failed
            storage.delete(storage.join(target, name))


def watch_for_spikes(job: TrainingJob, state: TrainState) -> None:
    """Set up the spike detector and the data to skip in `state`. Collective.

    `state` is fresh or about to be filled from a checkpoint. The data to skip comes from the run
    file and from earlier spikes.
    """
    recorded: list[tuple[DataRange, ...]] = [()]
    if dist.get_rank() == 0:  # only rank 0 reads it: ranks that saw different records would diverge
        attempts = RunFolder(job.folder).read_attempts()
        recorded = [tuple(DataRange(*attempt.skip) for attempt in attempts if attempt.skip)]
    dist.broadcast_object_list(recorded, src=0)
    by_hand = tuple(DataRange(*skipped) for skipped in job.training.skip_data)
    state.skip_ranges = tuple(sorted({*recorded[0], *by_hand}))
    state.detector = SpikeDetector(job.training.spikes, job.new_levels, state.skip_ranges)


def roll_back(
    job: TrainingJob, attempt: TrainingAttempt, state: TrainState, spike: Spike
) -> int | None:
    """Have the next attempt resume from before `spike` and skip its data. Collective.

    No checkpoint may be in the process of being written. Returns the step to resume from; None if
    no checkpoint is old enough, so that the run continues as it is. Raises Diverged on all ranks if
    the run has rolled back to the same place too often.
    """
    if state.detector.gives_up(spike):
        raise Diverged(
            f"{job.folder}: loss spike at data steps {spike.first} to {spike.last}, where the run "
            f"has already rolled back {spike.again} times; lower training.optimizer.lr, set "
            "training.spikes.rate_cut, or inspect the data with `trainrig trace`"
        )
    answer: list[int | None] = [None]
    if dist.get_rank() == 0:
        answer = [_record(job, attempt, state, spike)]
    dist.broadcast_object_list(answer, src=0)
    return answer[0]


def _record(
    job: TrainingJob, attempt: TrainingAttempt, state: TrainState, spike: Spike
) -> int | None:
    folder = RunFolder(job.folder)
    details = {
        "step": state.step,
        "outliers": spike.outliers,
        "first": spike.first,
        "last": spike.last,
        "skip": [spike.skip.begin, spike.skip.end],
    }
    to = _find_newest_before(folder, spike.skip.begin)
    late = state.step > 2 * job.training.checkpoints.every
    if to is None and late and not _branches_before(job, spike.skip.begin):
        # Early checkpoints were deleted; starting from step 0 would cost more than the spike.
        what = f"no checkpoint from before data step {spike.skip.begin} is left"
        folder.record("spike", attempt=attempt.number, **details, back_to=None, what=what)
        return None
    back_to = to or 0
    folder.record("spike", attempt=attempt.number, **details, back_to=back_to)
    folder.take_attempt(back_to, (spike.skip.begin, spike.skip.end))
    return back_to


def _branches_before(job: TrainingJob, data_step: int) -> bool:
    """Return whether `job` started from a checkpoint trained only on data before `data_step`."""
    if job.branch_from is None:
        return False
    return int(checkpoint_metadata.read_entries(job.branch_from)["data_step"]) <= data_step


def _find_newest_before(folder: RunFolder, data_step: int) -> int | None:
    """Return the step of the newest valid checkpoint trained only on data before `data_step`."""
    for path, step, _ in list_committed(folder, folder.checkpoints):
        whole = find_damage(path, thorough=False) is None
        if whole and checkpoint_metadata.read_entries(path)["data_step"] <= data_step:
            return step
    return None
