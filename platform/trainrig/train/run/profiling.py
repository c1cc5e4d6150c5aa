"""Records what some steps of a run did: a trace of every operation, and what memory it took.

A file for each rank of each attempt, `profile/attempt-0001/rank-00000.trace.json.gz`, in Chrome's
format (ui.perfetto.dev opens it). On a GPU there is also `rank-00000.memory.pickle`, the history of
the allocator's blocks (docs.pytorch.org/memory_viz opens it); on the CPU, which has none, the trace
says at each allocation how much is held. Nothing of it changes a bit of the run.
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

if TYPE_CHECKING:  # run files are read without torch
    import torch

log = logging.getLogger(__name__)
FOLDER = "profile"
HISTORY = 200_000  # allocations of a GPU that are remembered, with where they were asked for


class StepRecorder:
    """Records the chosen steps of one rank of an attempt, if it is one of those that do."""

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
        """The block takes update `number`; it is recorded if it is one of the chosen.

        What is done between two of them is recorded too, outside of their names. A block that
        raises leaves no trace.
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
        """Write what was recorded, unless it is written. What storage refuses is only told."""
        if self._trace is None:
            return
        import torch

        trace, self._trace = self._trace, None
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
            log.warning("%s: not written: %s", place, problem)
