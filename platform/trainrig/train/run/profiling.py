"""Profiles steps of a run: a trace of every operation, and its memory.

Each rank of each attempt writes a file `profile/attempt-0001/rank-00000.trace.json.gz` in Chrome's
format (open it with ui.perfetto.dev). On a GPU, it also writes `rank-00000.memory.pickle`, the
history of the allocator's blocks (open it with docs.pytorch.org/memory_viz). A CPU has no such
history; there, the trace has the allocated memory at each allocation. Profiling does not change the
results of a run.
"""

import contextlib
import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from trainrig import storage
from trainrig.errors import ClusterError
from trainrig.train.held_out import StepProfile
from trainrig.train.run.run_folder import TrainingAttempt

if TYPE_CHECKING:  # run files are read without importing torch
    import torch

log = logging.getLogger(__name__)
FOLDER = "profile"
HISTORY = 200_000  # GPU allocations kept in the history, with their call sites


class StepRecorder:
    """Profiler of the chosen steps of one rank in one attempt; inactive on other ranks."""

    def __init__(
        self, profile: StepProfile | None, folder: str, attempt: TrainingAttempt, rank: int
    ) -> None:
        chosen = profile is not None and (profile.ranks is None or rank in profile.ranks)
        self._profile = profile if chosen else None
        place = storage.join(folder, FOLDER, f"attempt-{attempt.number:04d}")
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
