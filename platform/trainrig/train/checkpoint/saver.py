"""Saving a run while it goes on: it waits for a copy in memory, a thread writes that to storage.

The ranks' threads meet over a process group of their own: each writes its part, rank 0 gathers the
sums of all, writes the rest, and the manifest last. So they also agree on what went wrong.
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
from trainrig.train.checkpoint.adapter_entries import build_adapter_entries
from trainrig.train.checkpoint.chunks import DamagedCheckpoint, FileChunks, write_file
from trainrig.train.checkpoint.clean_up import clean_up
from trainrig.train.checkpoint.index import IndexedTensor, find_rows
from trainrig.train.checkpoint.manifest import (
    BROUGHT,
    STATE,
    TOKENIZER,
    CheckpointManifest,
    commit,
    mark_damaged,
    name_checkpoint_folder,
)
from trainrig.train.checkpoint.shares import find_written, index_stages
from trainrig.train.checkpoint.tensor_file import StagedFile, tensor_file_name
from trainrig.train.checkpoint.verification import Sums, read_back, record_verified
from trainrig.train.job import TrainingJob
from trainrig.train.run.run_folder import RunFolder, TrainingAttempt
from trainrig.train.state import TrainState

log = logging.getLogger(__name__)
LONGEST_PROBLEM = 500  # characters of a problem in an event: a line of them has to be short


@dataclass(frozen=True)
class Snapshot:
    """What is saved besides the tensors, as it was when `save` was called."""

    step: int
    entries: bytes  # of STATE
    began: float  # time.perf_counter() when `save` was called
    stall_seconds: float  # that the run waited


class Saver:
    """Writes the checkpoints of one rank of one attempt. All ranks must call the same methods."""

    def __init__(
        self, folder: RunFolder, attempt: TrainingAttempt, job: TrainingJob, batches: DataHistory
    ) -> None:
        """Collective. `batches` are those that the run is trained on."""
        self._folder, self._attempt, self._job, self._batches = folder, attempt, job, batches
        self._settings = job.training.checkpoints
        self._rank, self._world = dist.get_rank(), dist.get_world_size()
        # Its waits have torch's default limit of 30 minutes: storage is tried again for minutes.
        self._group = dist.new_group(backend="gloo")
        self._staged: StagedFile | None = None
        self._index: dict[str, IndexedTensor] = {}  # of the files of all ranks
        # The last that is whole, and which of its files are this rank's.
        self._written: tuple[str, dict[str, FileChunks]] | None = None
        self._thread: threading.Thread | None = None
        self._failures = 0  # in a row, of the newest saves
        self._problem = ""  # the last failure's, the same on all ranks
        self._broken: Exception | None = None  # this rank's thread ended by it

    def due(self, step: int) -> bool:
        """Whether the run file wants a checkpoint after `step`."""
        return self._job.training.saves_after(step)

    def save(self, state: TrainState) -> None:
        """Write a checkpoint of `state` as it is now; returns once that is copied.

        An earlier save still being written is waited for first. Raises ClusterError if more saves
        in a row failed than the run file allows.
        """
        began = time.perf_counter()
        self._wait()
        if self._failures > self._settings.failures:
            raise ClusterError(f"{self._problem}; saves that failed in a row: {self._failures}")
        tensors, mesh = state.rows(state.list_counted_tensors()), state.mesh
        parts = find_written(tensors, mesh.lead)
        if self._staged is None:
            self._staged, self._index = StagedFile(parts), index_stages(tensors, mesh)
            mine = {n: (first, _count_rows(part)) for n, (part, first) in parts.items()}
            assert mine == find_rows(self._index, self._rank), "not as the index has them"
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
        """Return once no checkpoint is being written, whatever became of the last."""
        self._wait()

    def finish(self) -> None:
        """Return once the last save is whole. Raises ClusterError if it failed."""
        self._wait()
        if self._failures:
            raise ClusterError(self._problem)

    def verify(self, go_on: Callable[[], None]) -> None:
        """Have what was saved last, if anything was, read back: each rank its own file, calling
        `go_on` between reads. Raises on all ranks alike; DamagedCheckpoint, having marked it so, if
        other bytes are there than were written."""
        if self._written is None:
            return
        target, mine = self._written
        sums: Sums = {}
        problem: TrainrigError | None = None
        try:
            sums = read_back(target, mine, go_on)
        except TrainrigError as error:
            problem = error
        outcomes = [(sums, problem)] * self._world
        dist.all_gather_object(outcomes, (sums, problem), group=self._group)
        problem = next((each for _, each in outcomes if each), None)
        if self._rank == 0:
            if isinstance(problem, DamagedCheckpoint):
                mark_damaged(target, str(problem))
            elif problem is None:
                try:
                    record_verified(target, {n: s for each, _ in outcomes for n, s in each.items()})
                except (OSError, TrainrigError) as error:  # the driver then reads it all itself
                    log.warning("%s: cannot be said to be verified: %s", target, error)
        dist.barrier(self._group)  # none says that the run is at its end before this is on record
        if problem:
            raise problem

    @contextlib.contextmanager
    def keep_if_diverged(self) -> Iterator[None]:
        """Have the last save made whole if the block ends because no update can be made: every
        rank ends then, and what was saved is what the user goes on from."""
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
                f"{self._folder.checkpoints}: the ranks lost each other while they saved: "
                f"{self._broken}"
            ) from self._broken

    def _build_entries(self, state: TrainState) -> dict[str, object]:
        """All of the state that is no tensor, and what it is the state of."""
        scale = state.loss_scale
        return {
            "step": state.step,
            "data_step": state.data_step,
            "tokens": state.tokens,
            "skipped": [list(each) for each in state.skipped],
            **({} if scale is None else {"loss_scale": [scale.factor, scale.clean]}),
            **({"carried": state.carried} if state.carried else {}),
            "spikes": state.detector.build_entries(),
            "seed": self._job.training.seed,
            "data": self._batches.data_before(state.data_step),
            "model": self._job.model_after(state.data_step).model_dump(mode="json"),
            "context": self._job.context_before(state.data_step),
            **({"adapter": build_adapter_entries(self._job.adapter)} if self._job.adapter else {}),
            "training": extract_identity(self._job.training),
            "numerics": numerics.describe_numerics(
                self._job.training.compile,
                self._job.training.precision.compute,
                self._job.describe_attention(),
            ),
        }

    def _run(self, staged: StagedFile, snapshot: Snapshot) -> None:
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
        except Exception as error:  # raised by whoever waits for this thread
            self._broken = error

    def _write_to(
        self, place: str, staged: StagedFile, snapshot: Snapshot, kept: bool = False
    ) -> tuple[int, str]:
        """One checkpoint below `place`, by all ranks; its bytes, and what went wrong or "". `kept`:
        it is the one to `verify`."""
        target = name_checkpoint_folder(place, snapshot.step, self._attempt.number)
        mine = tensor_file_name(self._rank)
        outcome = _try_action(
            lambda: staged.write(storage.join(target, mine)), f"rank {self._rank}"
        )
        outcomes: list[FileChunks | str] = [""] * self._world
        dist.all_gather_object(outcomes, outcome, group=self._group)
        problem = next((each for each in outcomes if isinstance(each, str)), "")
        files = {
            tensor_file_name(rank): each
            for rank, each in enumerate(outcomes)
            if isinstance(each, FileChunks)
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
            others = {tensor_file_name(rank) for rank in range(1, self._world)}
            self._written = target, {n: c for n, c in own.items() if n not in others or n == mine}
        return sum(each.bytes for each in files.values()), problem

    def _commit(self, target: str, snapshot: Snapshot, files: dict[str, FileChunks]) -> FileChunks:
        """Write all but the tensors, and the manifest last."""
        texts = {STATE: snapshot.entries, TOKENIZER: self._job.tokenizer.encode()}
        if self._job.beside:
            texts[BROUGHT] = TokenizerFiles(self._job.tokenizer, self._job.beside).brought
        for name, data in texts.items():
            files[name] = write_file(storage.join(target, name), memoryview(data))
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
            except (OSError, TrainrigError) as error:  # what is left over is tried again next time
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


def _try_action(action: Callable[[], FileChunks], who: str) -> FileChunks | str:
    """What `action` gives, or what went wrong in words: the other ranks are waiting for either."""
    try:
        return action()
    except (OSError, TrainrigError) as error:
        return f"{who}: {error}"
    except Exception as error:
        log.exception("%s: while writing a checkpoint", who)
        return f"{who}: {type(error).__name__}: {error}"


def _remove(target: str, names: list[str]) -> None:
    """Give the room back that a save took which failed."""
    for name in names:
        with contextlib.suppress(OSError, TrainrigError):  # where writing failed, this may too
            storage.delete(storage.join(target, name))
