"""Heartbeats of a rank to its supervisor, whose replies carry stop requests.

This module does not depend on Ray: `HeartbeatReporter` takes the function that sends a heartbeat to
the supervisor.
"""

import dataclasses
import functools
import logging
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from trainrig.processes.process_identity import Process

log = logging.getLogger(__name__)
RECENT_STEPS = 31  # number of recent steps whose median is the duration of a step
LONGEST_INTERVAL = 1.0  # s between two heartbeats that are sent: their replies carry stop requests
# Maximum interval between heartbeats as a fraction of the hang limit, so that a late heartbeat does
# not look like a hang.
OF_A_HANG = 0.1


class HeartbeatSink(Protocol):
    """Interface of a rank to its supervisor."""

    def heartbeat(self, step: int, doing: str) -> None:
        """Report that `step` updates are done and the rank is `doing` now.

        Never blocks and never raises.
        """

    def stop_wanted(self) -> bool:
        """Return whether this rank was asked to stop.

        Other ranks may not have been asked yet, so all ranks must agree before they stop.
        """


class _NoSink:
    """Sink of a rank without a supervisor."""

    def heartbeat(self, step: int, doing: str) -> None:
        """Do nothing."""

    def stop_wanted(self) -> bool:
        """Return False."""
        return False


UNSUPERVISED: HeartbeatSink = _NoSink()


@dataclass(frozen=True)
class Heartbeat:
    """The last report of a rank, and the duration of its recent steps."""

    rank: int
    processes: tuple[Process, ...]  # the processes of the rank and of its worker agent
    node: str  # the supervisor's name for the node
    count: int = 0  # number of heartbeats so far: a count that does not grow means no progress
    step: int = 0  # number of updates done
    doing: str = "start"
    # False while the attempt does this activity for the first time, which may include compilation.
    usual: bool = False
    step_seconds: float | None = None  # median of recent steps; None before the first step is done


def compute_send_interval(least: float, heartbeat: Heartbeat, hang_seconds: float) -> float:
    """Return the seconds to wait after sending `heartbeat`: half a step, within bounds.

    Each heartbeat costs the rank and its supervisor some milliseconds of CPU time.
    """
    longest = min(LONGEST_INTERVAL, OF_A_HANG * hang_seconds)
    return max(least, min(longest, (heartbeat.step_seconds or 0.0) / 2))


@dataclass(frozen=True)
class Stall:
    """Action of a rank that makes no progress.

    The action runs in a separate thread, because the training thread is blocked. Heartbeats are
    still sent.
    """

    after: Callable[[Heartbeat], float]  # returns the seconds without progress before the action
    do: Callable[[Heartbeat], None]  # the action


class HeartbeatReporter:
    """A sink whose thread regularly sends the newest heartbeat and receives stop requests.

    The training thread only stores its heartbeat, which the sending thread reads.
    """

    def __init__(
        self,
        first: Heartbeat,
        send_heartbeat: Callable[[Heartbeat], bool],
        every: float,
        hang_seconds: float,
        stall: Stall | None = None,
    ) -> None:
        """Start the sending thread, whose first heartbeat is `first`.

        Args:
            first: the heartbeat before any progress.
            send_heartbeat: sends a heartbeat and returns whether the rank must stop. It may block
                and raise: the rank continues without its supervisor.
            every: minimum interval between heartbeats, in seconds.
            hang_seconds: seconds without progress that count as a hang; see
                `compute_send_interval`.
            stall: action to take after a long time without progress, if any.
        """
        self._heartbeat = first
        self._send_heartbeat = send_heartbeat
        self._every = every
        self._hang_seconds = hang_seconds
        self._pace = _Pace()
        self._done: set[str] = set()  # activities that were completed at least once
        self._stop = False
        self._stall = stall
        self._seen = first.count
        self._since = time.monotonic()
        self._told: int | None = None  # heartbeat count at the last stall that was acted on
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._report, name="heartbeats", daemon=True)
        self._thread.start()

    def heartbeat(self, step: int, doing: str) -> None:
        """Store the heartbeat for the sending thread."""
        before = self._heartbeat
        if (before.step, before.doing) != (step, doing):
            self._done.add(before.doing)
        self._heartbeat = dataclasses.replace(
            before,
            count=before.count + 1,
            step=step,
            doing=doing,
            usual=doing in self._done,
            step_seconds=self._pace.update(step, doing, time.monotonic()),
        )

    def stop_wanted(self) -> bool:
        """Return whether this rank was asked to stop."""
        return self._stop

    @property
    def step(self) -> int:
        """Number of updates done, according to the last heartbeat."""
        return self._heartbeat.step

    def close(self) -> None:
        """Send the last heartbeat and end the sending thread."""
        self._closed.set()
        self._thread.join()

    def _report(self) -> None:
        closed = False
        while True:
            try:
                self._stop = self._send_heartbeat(self._heartbeat) or self._stop
            except Exception as error:
                del error  # the supervisor notices missing heartbeats; this rank keeps training
            if closed:
                return
            self._detect_stall()
            closed = self._closed.wait(
                compute_send_interval(self._every, self._heartbeat, self._hang_seconds)
            )

    def _detect_stall(self) -> None:
        """Start the stall's action if there was no progress for long, once for each stall."""
        heartbeat = self._heartbeat
        now = time.monotonic()
        if heartbeat.count != self._seen:
            self._seen = heartbeat.count
            self._since = now
        elif (
            self._stall
            and self._told != heartbeat.count
            and now - self._since > self._stall.after(heartbeat)
        ):
            self._told = heartbeat.count
            tell = functools.partial(_report_stall, self._stall, heartbeat)
            threading.Thread(target=tell, name="stall", daemon=True).start()


def _report_stall(stall: Stall, heartbeat: Heartbeat) -> None:
    try:
        stall.do(heartbeat)
    except Exception as error:
        log.warning("the cause of a stall could not be collected: %s", error)


class _Pace:
    """Median duration of recent steps, without the time spent between steps."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=RECENT_STEPS)
        self._began: tuple[int, float] | None = None  # a step and the time of its first heartbeat

    def update(self, step: int, doing: str, now: float) -> float | None:
        if self._began and step > self._began[0]:
            self._seconds.append(now - self._began[1])
            self._began = None
        if doing == "train" and self._began is None:
            self._began = step, now
        return statistics.median(self._seconds) if self._seconds else None
