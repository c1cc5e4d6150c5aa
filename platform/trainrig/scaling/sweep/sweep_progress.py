"""Progress display of a sweep: the number of finished runs, and the state of running trials.

The module reads run folders and is notified when trials start and end. It does not depend on Ray.
"""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from trainrig.scaling.sweep.sweep_run_file import Sweep
from trainrig.scaling.sweep.trial import is_complete, is_over
from trainrig.scaling.sweep.trials import SEARCH, Trial, TrialLength, name_run_folder
from trainrig.train.run.progress import ProgressFollower

POLL = 1.0  # seconds between two updates of the display
Show = Callable[[int, int, Sequence[Mapping[str, str]]], None]
"""Function called with the finished runs, all runs, and one row of text per running trial.

A row is keyed by column.
"""


class SweepProgress:
    """Progress of a set of trials that consist of `runs` runs.

    The runs of the trials in `over` may be finished already.
    """

    def __init__(self, sweep: Sweep, runs: int, over: Iterable[Trial] = ()) -> None:
        self._sweep = sweep
        self._runs = runs
        self._running: dict[str, Trial] = {}  # keyed by name, in the order in which they started
        self._over: set[str] = set()  # folders of finished runs
        self._followed: dict[str, ProgressFollower] = {}  # keyed by run folder
        for trial in over:
            self._find_unfinished_length(trial)

    def is_over(self, trial: Trial) -> bool:
        """Return whether all runs of `trial` are finished."""
        return self._find_unfinished_length(trial) is None

    def begin_trial(self, trial: Trial) -> None:
        """Add `trial` to the running trials."""
        self._running[trial.name] = trial

    def end_trial(self, trial: Trial) -> None:
        """Remove `trial` from the running trials."""
        self._running.pop(trial.name, None)
        self._find_unfinished_length(trial)

    def show(self, show: Show) -> None:
        """Read the state of all running trials, and pass it to `show`."""
        rows = [self._format_row(trial) for trial in list(self._running.values())]
        show(len(self._over), self._runs, rows)

    def _find_unfinished_length(self, trial: Trial) -> TrialLength | None:
        """Return the run of `trial` that is under way, or None if all its runs are finished."""
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
        if length := self._find_unfinished_length(trial):
            folder = name_run_folder(self._sweep, trial, length)
            follower = self._followed.setdefault(folder, ProgressFollower(folder, length.steps))
            progress = follower.look()
            row["tokens"] = f"{length.tokens:,}"
            row["step"] = f"{progress.step if progress else 0:,} of {length.steps:,}"
            row[""] = progress.describe() if progress else "starting"
        return row


@contextlib.contextmanager
def show_progress(progress: SweepProgress, show: Show, seconds: float) -> Iterator[None]:
    """Show `progress` every `every` seconds, from a thread, while the block runs."""
    finished = threading.Event()

    def look() -> None:
        while not finished.wait(seconds):
            progress.show(show)

    thread = threading.Thread(target=look, name="trials", daemon=True)
    thread.start()
    try:
        yield
    finally:
        finished.set()
        thread.join()
