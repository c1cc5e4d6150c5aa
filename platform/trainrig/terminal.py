"""Progress display of running stages: a live panel on a terminal, plain lines elsewhere.

Everything is printed to stderr, by the driver only. The progress of training is read from its
metrics.
"""

import contextlib
import functools
import io
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.logging import RichHandler
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column, Table
from rich.text import Text

from trainrig import job, storage
from trainrig.config import RunFile
from trainrig.errors import ClusterError
from trainrig.manifest import Manifest
from trainrig.ray_runtime import ray_progress
from trainrig.train.run.progress import ProgressFollower
from trainrig.train.run.progress import TrainingProgress as RunProgress

LINE_SECONDS = 30.0  # without a terminal, a line is printed at least this often
LINES = 10  # without a terminal, a line is also printed at every tenth of the splits or steps
FOLLOW_SECONDS = 1.0
BAR = 16  # width in characters, which leaves room for the long note of training

ROWS = 20  # maximum number of concurrent trials that are shown

Advance = Callable[[int, int], None]
Trials = Callable[[int, int, Sequence[Mapping[str, str]]], None]


class Terminal:
    """Display of the driver's messages and progress on stderr."""

    def __init__(self) -> None:
        self.console = Console(stderr=True, highlight=False, soft_wrap=True)
        self.live = self.console.is_terminal and not os.environ.get("CI")

    def listen(self) -> None:
        """Print the messages of trainrig's loggers, above the live panel if there is one."""
        handler: logging.Handler = logging.StreamHandler(self.console.file)
        handler.setFormatter(logging.Formatter("trainrig: %(message)s"))
        if self.live:
            handler = RichHandler(console=self.console, show_time=False, show_path=False)
        logger = logging.getLogger("trainrig")
        logger.handlers = [handler]
        job.set_log_level()
        logger.propagate = False

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Print the messages of trainrig's loggers in the block, and then restore the loggers."""
        logger = logging.getLogger("trainrig")
        before = (list(logger.handlers), logger.level, logger.propagate)
        self.listen()
        try:
            yield
        finally:
            logger.handlers, logger.level, logger.propagate = before

    def say(self, text: str) -> None:
        """Print one line."""
        self.console.print(text, markup=False)

    def print_table(self, rows: Mapping[str, str]) -> None:
        """Print a table of two columns, names and values."""
        grid = Table.grid(padding=(0, 2))
        for name, value in rows.items():
            grid.add_row(Text(name), Text(value, overflow="fold"))
        self.console.print(grid)

    @contextlib.contextmanager
    def only_results_on_stdout(self) -> Iterator[None]:
        """Redirect standard output to stderr in the block, because Ray prints messages there."""
        with contextlib.redirect_stdout(_Talk(self)):
            yield

    @contextlib.contextmanager
    def stage(self, title: str, unit: str) -> Iterator[Advance]:
        """Show the progress of a stage; yield a function to call with (done, all)."""
        if not self.live:
            yield _Lines(self, title, unit).advance
            return
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=self.console, transient=True) as progress:
            task = progress.add_task(title, total=None, note=unit)
            with ray_progress.share_terminal(functools.partial(_hide, progress)):
                yield lambda done, of, note=unit: progress.update(  # type: ignore[misc]
                    task, completed=done, total=of, note=note
                )

    @contextlib.contextmanager
    def show_trials(self, title: str) -> Iterator[Trials]:
        """Show the trials that run concurrently.

        Yields a function to call with the number of trials that are done, the number of all trials,
        and a row of texts by column for each running trial.
        """
        if not self.live:
            lines = _Lines(self, title, "runs")
            yield lambda done, of, rows: lines.advance(done, of, f"runs, {len(rows)} under way")
            return
        with Live(console=self.console, transient=True, auto_refresh=False) as live:
            yield lambda done, of, rows: live.update(
                _build_table(title, done, of, rows), refresh=True
            )

    @contextlib.contextmanager
    def show_training(self, title: str, folder: str, steps: int) -> Iterator[None]:
        """Show the progress of the run in `folder` while the block trains it."""
        with self._show_panel(title, steps) as advance:
            stop = threading.Event()
            follower = ProgressFollower(folder, steps)
            before = _look(follower)
            watch = threading.Thread(
                target=_follow, args=(advance, follower, before, steps, stop), daemon=True
            )
            watch.start()
            try:
                yield
            finally:
                stop.set()
                watch.join()

    @contextlib.contextmanager
    def _show_panel(self, title: str, steps: int) -> Iterator[Any]:
        """Show one line, whose note estimates the remaining time with restarts included."""
        if not self.live:
            yield _Lines(self, title, "steps").advance
            return
        name = Column(no_wrap=True, min_width=len(title))
        rest = Column(no_wrap=True)
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}", table_column=name),
            BarColumn(bar_width=BAR),
            TextColumn("{task.completed}/{task.total} {task.fields[note]}", table_column=rest),
        )
        with Progress(*columns, console=self.console, transient=True) as progress:
            task = progress.add_task(title, total=steps, note="steps, starting")
            yield lambda done, of, note: progress.update(task, completed=done, total=of, note=note)


@contextlib.contextmanager
def _hide(progress: Progress) -> Iterator[None]:
    """Hide the line of a stage in the block."""
    progress.stop()
    try:
        yield
    finally:
        progress.start()


def _build_table(title: str, done: int, of: int, rows: Sequence[Mapping[str, str]]) -> Group:
    table = Table(box=None)
    for name in rows[0] if rows else ():
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    for row in rows[:ROWS]:
        table.add_row(*(Text(value) for value in row.values()))
    if len(rows) > ROWS:
        table.caption = f"and {len(rows) - ROWS} more"
    return Group(Text(f"{title}: {done} of {of} runs"), table)


class _Talk(io.TextIOBase):
    """Standard output that prints lines of other code on the terminal, except known messages."""

    KNOWN = "A worker died or was killed while executing a task"

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        """Return whether there is a live terminal, where Ray then shows its progress bars."""
        return self._terminal.live

    def write(self, text: str) -> int:
        for line in text.splitlines():
            if line.strip() and self.KNOWN not in line:
                self._terminal.say(line)
        return len(text)


class _Lines:
    """Progress display by a small number of plain lines."""

    def __init__(self, terminal: Terminal, title: str, unit: str) -> None:
        self._terminal = terminal
        self._title = title
        self._unit = unit
        self._said_at = float("-inf")
        self._said_part = -1
        self._said = -1

    def advance(self, done: int, of: int, note: str = "") -> None:
        part = LINES * done // of if of else 0
        now = time.monotonic()
        if now - self._said_at < LINE_SECONDS and part <= self._said_part:
            return
        if done == self._said:
            return
        self._said_at = now
        self._said_part = part
        self._said = done
        self._terminal.say(f"{self._title}: {done} of {of} {note or self._unit}")


def _follow(
    advance: Any,
    follower: ProgressFollower,
    before: RunProgress | None,
    steps: int,
    stop: threading.Event,
) -> None:
    """Show the progress of the run until `stop` is set, and once more after that.

    `before` is the progress that an earlier call left. It is not shown, because this call may have
    nothing to do.
    """
    while True:
        last_look = stop.wait(FOLLOW_SECONDS)
        progress = _look(follower)
        if progress and progress != before:
            advance(progress.step, steps, f"steps, {progress.describe()}")
        if last_look:
            return


def _look(follower: ProgressFollower) -> RunProgress | None:
    """Read the progress of the run; return None if the storage fails.

    The training process reports such errors, and the next read follows soon.
    """
    with contextlib.suppress(OSError, ClusterError), storage.briefly():
        return follower.look()
    return None


def show(terminal: Terminal, run: RunFile, stage: Callable[..., Manifest]) -> Manifest:
    """Run `stage` with `run` and show its progress; then print its counts in one line."""
    match run.progress:
        case "steps":
            with terminal.show_training(run.verb, run.output, run.total_steps() or 0):
                manifest = stage(run)
        case "splits":
            with terminal.stage(run.verb, "splits") as advance:
                manifest = stage(run, progress=advance)
        case "trials":
            with terminal.show_trials(run.verb) as advance_all:
                manifest = stage(run, show=advance_all)
        case "none":
            manifest = stage(run)
    terminal.say(f"{run.verb}: {run.output}: {_format_counts(manifest.counts)}")
    return manifest


def _format_counts(counts: Mapping[str, Any]) -> str:
    words = []
    for name, value in counts.items():
        if isinstance(value, float):
            words.append(f"{name} {value:,.4g}")
        elif isinstance(value, int):
            words.append(f"{name} {value:,}")
        elif name == "refused" and (rows := sum(value.values())):  # counts by reason
            words.append(f"refused {rows:,} {'row' if rows == 1 else 'rows'}: see quarantine/")
    return ", ".join(words)
