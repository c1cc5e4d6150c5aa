"""What is shown of a sweep while it goes on: how many of its runs are over, and those under way.

It reads run folders and is told which trials have started and ended; it knows no Ray.
"""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from trainrig.scaling.sweep.run_file import Sweep
from trainrig.scaling.sweep.trial import is_complete, is_over
from trainrig.scaling.sweep.trials import SEARCH, Trial, TrialLength, name_run_folder
from trainrig.train.run.progress import ProgressFollower

POLL = 1.0  # s between two looks at the trials
Show = Callable[[int, int, Sequence[Mapping[str, str]]], None]
"""Called with (runs over, runs in all, a row of texts by column for each trial under way)."""


class SweepProgress:
    """Of one set of trials, which come to `runs` runs; those of `over` are over already."""

    def __init__(self, sweep: Sweep, runs: int, over: Iterable[Trial] = ()) -> None:
        self._sweep, self._runs = sweep, runs
        self._running: dict[str, Trial] = {}  # in the order of starts
        self._over: set[str] = set()  # run folders
        self._followed: dict[str, ProgressFollower] = {}  # by run folder
        for trial in over:
            self._look(trial)

    def is_over(self, trial: Trial) -> bool:
        """Whether all its runs are."""
        return self._look(trial) is None

    def begin_trial(self, trial: Trial) -> None:
        """It runs."""
        self._running[trial.name] = trial

    def end_trial(self, trial: Trial) -> None:
        """It does not any more."""
        self._running.pop(trial.name, None)
        self._look(trial)

    def show(self, show: Show) -> None:
        """Look at what runs, and hand it on."""
        rows = [self._format_row(trial) for trial in list(self._running.values())]
        show(len(self._over), self._runs, rows)

    def _look(self, trial: Trial) -> TrialLength | None:
        """The run of `trial` that is being made; None if all are over."""
        for length in reversed(trial.lengths):
            folder = name_run_folder(self._sweep, trial, length)
            if folder in self._over:
                continue
            over = is_over if trial.place == SEARCH else functools.partial(is_complete, self._sweep)
            if not over(folder):
                return length
            self._over.add(folder)
            self._followed.pop(folder, None)
        return None

    def _format_row(self, trial: Trial) -> dict[str, str]:
        row = {
            "trial": trial.name,
            "parameters": f"{trial.ladder_model.parameters:,}",
            "tokens": "",
            "rate": f"{trial.rate:.2g}",
            "batch": f"{trial.batch * self._sweep.batches.sequence_length:,}",
            "step": "",
            "": "ending",
        }
        if length := self._look(trial):
            folder = name_run_folder(self._sweep, trial, length)
            follower = self._followed.setdefault(folder, ProgressFollower(folder, length.steps))
            progress = follower.look()
            row["tokens"] = f"{length.tokens:,}"
            row["step"] = f"{progress.step if progress else 0:,} of {length.steps:,}"
            row[""] = progress.describe() if progress else "starting"
        return row


@contextlib.contextmanager
def show_progress(progress: SweepProgress, show: Show, every: float) -> Iterator[None]:
    """Show `progress` every so many seconds, from a thread of its own, while the block runs."""
    over = threading.Event()

    def look() -> None:
        while not over.wait(every):
            progress.show(show)

    thread = threading.Thread(target=look, name="trials", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
