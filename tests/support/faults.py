"""Faults that are injected into runs, and what of a run they must not change."""

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from support.waiting import wait_until
from trainrig.train.checkpoint import find_newest_valid
from trainrig.train.run import metrics
from trainrig.train.run.run_folder import RunFolder
from trainrig.train.run.step_data import read_trained_samples
from trainrig.train.training_job import TrainingJob

PATIENCE = 300.0  # s for one event: far above what any takes, to end a broken test


def read_results(job: TrainingJob) -> dict[str, Any]:
    """Return results that faults must not change: losses, samples, last weights and optimizer."""
    folder = RunFolder(job.folder)
    newest, damages = find_newest_valid(folder)
    assert newest is not None and not damages
    names = ("step", "train/loss", "train/grad_norm", "train/lr", "train/tokens")
    return {
        "updates": [[line[name] for name in names] for line in metrics.read_series(job.folder)],
        "held out": [
            {
                name: value
                for name, value in line.items()
                if name not in ("time", "attempt") and not name.endswith("_seconds")
            }
            for line in metrics.read_held_out_series(job.folder)
        ],
        "samples": read_trained_samples(folder),
        "tensors": {p.name: p.read_bytes() for p in Path(newest.path).glob("*.safetensors")},
    }


class Events:
    """The events of a run, read while the run records them."""

    def __init__(self, folder: str) -> None:
        self.folder = RunFolder(folder)

    def all(self, kind: str) -> list[dict[str, Any]]:
        """Return the events of one kind so far."""
        return [event for event in self.folder.read_events() if event["event"] == kind]

    def wait(self, kind: str, count: int = 1) -> dict[str, Any]:
        """Wait for the `count`-th event of a kind and return it."""
        wait_until(
            lambda: len(self.all(kind)) >= count,
            lambda: f"{len(self.all(kind))} {kind} of {count}",
            seconds=PATIENCE,
        )
        return self.all(kind)[count - 1]

    def wait_for_a_step(self) -> None:
        """Wait until the newest attempt takes steps."""

        def takes_steps() -> bool:
            newest = max((event["attempt"] for event in self.all("attempt_started")), default=0)
            own = {e["event"] for e in self.folder.read_events() if e.get("attempt") == newest}
            return "first_step" in own and not own & {"attempt_failed", "attempt_stopped"}

        wait_until(takes_steps, self.folder.read_events, seconds=PATIENCE)

    def ranks(self, of: str = "pid") -> dict[int, int]:
        """Return the processes of the newest attempt's ranks.

        With `of="worker agent"`, return their Ray workers.
        """
        started = self.all("worker_started")
        newest = max(event["attempt"] for event in started)
        return {event["rank"]: event[of] for event in started if event["attempt"] == newest}


def kill_actors(name: str) -> int:
    """Send SIGKILL to this machine's Ray actors of class `name` and return how many there were."""
    return _kill_those(lambda process: f"ray::{name}" in " ".join(process.cmdline()))


def kill_fork_servers() -> int:
    """Send SIGKILL to the fork servers that ranks are forked from, not to the ranks."""
    return _kill_those(lambda process: "ray::ForkServer" in " ".join(process.parent().cmdline()))


def _kill_those(wanted: Callable[[psutil.Process], bool]) -> int:
    killed = 0
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # any process may end just now
            if wanted(process):
                process.kill()
                killed += 1
    return killed


class Aside(threading.Thread):
    """A thread that disturbs a run of the main thread; `end` raises the thread's error."""

    def __init__(self, do: Callable[[], None]) -> None:
        super().__init__(daemon=True)
        self._do = do
        self._error = None
        self.start()

    def run(self) -> None:
        try:
            self._do()
        except BaseException as error:
            self._error = error

    def end(self) -> None:
        self.join(PATIENCE)
        assert not self.is_alive()
        if self._error:
            raise self._error
