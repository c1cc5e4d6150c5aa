"""Heartbeats of a rank to whoever supervises it; a stop request comes back.

It knows no Ray: `HeartbeatReporter` is given the function that carries a heartbeat to the
supervisor.
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
RECENT_STEPS = 31  # whose median says how long a step takes
LONGEST_INTERVAL = 1.0  # s between two heartbeats that are sent: a stop request comes back with one
OF_A_HANG = 0.1  # of what counts as a hang, at the most: what is told late must not look like one


class HeartbeatSink(Protocol):
    """The supervisor, as a rank sees it."""

    def heartbeat(self, step: int, doing: str) -> None:
        """Say that `step` updates are done and `doing` goes on. Never blocks, never raises."""

    def stop_wanted(self) -> bool:
        """Whether this rank was asked to stop. The others may not know yet: agree with them."""


class _NoSink:
    """Supervises no one."""

    def heartbeat(self, step: int, doing: str) -> None:
        """Go unheard."""

    def stop_wanted(self) -> bool:
        """Never."""
        return False


UNSUPERVISED: HeartbeatSink = _NoSink()


@dataclass(frozen=True)
class Heartbeat:
    """The last that a rank said, and what it knows of its own pace."""

    rank: int
    processes: tuple[Process, ...]  # of the rank, and of who keeps it
    node: str  # as the supervisor calls it
    count: int = 0  # of heartbeats so far: one that stays the same means no progress
    step: int = 0  # updates done
    doing: str = "start"
    # False while the attempt does this for the first time: it may be compiling.
    usual: bool = False
    step_seconds: float | None = None  # median of the last few; None before the first is done


def compute_send_interval(least: float, heartbeat: Heartbeat, hang_seconds: float) -> float:
    """Seconds until there is something to tell after `heartbeat`: half a step, within bounds.

    Each time that a rank tells it, and that its supervisor asks, takes milliseconds of a CPU.
    """
    longest = min(LONGEST_INTERVAL, OF_A_HANG * hang_seconds)
    return max(least, min(longest, (heartbeat.step_seconds or 0.0) / 2))


@dataclass(frozen=True)
class Stall:
    """What a rank does, in a thread of its own, when it makes no progress: the one that trains
    waits for something, and heartbeats go on."""

    after: Callable[[Heartbeat], float]  # seconds after that heartbeat
    do: Callable[[Heartbeat], None]


class HeartbeatReporter:
    """A sink whose thread exchanges the newest heartbeat for the stop request, every so often.

    The training thread only leaves its beat where the other finds it.
    """

    def __init__(
        self,
        first: Heartbeat,
        send_heartbeat: Callable[[Heartbeat], bool],
        every: float,
        hang_seconds: float,
        stall: Stall | None = None,
    ) -> None:
        """`send_heartbeat` may block and raise: a supervisor that is gone stops nobody. `every`: s
        at least; `hang_seconds`: without progress that are a hang. See `compute_send_interval`.
        `stall`: what to do when there was none for long."""
        self._heartbeat = first
        self._send_heartbeat, self._every, self._hang_seconds = send_heartbeat, every, hang_seconds
        self._pace = _Pace()
        self._done: set[str] = set()  # what was done at least once, to its end
        self._stop = False
        self._stall, self._seen, self._since = stall, first.count, time.monotonic()
        self._told: int | None = None  # the count without progress since, of the last stall
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._report, name="heartbeats", daemon=True)
        self._thread.start()

    def heartbeat(self, step: int, doing: str) -> None:
        """See HeartbeatSink."""
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
        """See HeartbeatSink."""
        return self._stop

    @property
    def step(self) -> int:
        """Updates done, by the last heartbeat."""
        return self._heartbeat.step

    def close(self) -> None:
        """Exchange the last heartbeat, and no more."""
        self._closed.set()
        self._thread.join()

    def _report(self) -> None:
        closed = False
        while True:
            try:
                self._stop = self._send_heartbeat(self._heartbeat) or self._stop
            except Exception as error:
                del error  # whoever supervises sees that nothing comes; this rank trains on
            if closed:
                return
            self._look_for_stall()
            closed = self._closed.wait(
                compute_send_interval(self._every, self._heartbeat, self._hang_seconds)
            )

    def _look_for_stall(self) -> None:
        """Do what is to be done about one, once for each."""
        heartbeat, now = self._heartbeat, time.monotonic()
        if heartbeat.count != self._seen:
            self._seen, self._since = heartbeat.count, now
        elif (
            self._stall
            and self._told != heartbeat.count
            and now - self._since > self._stall.after(heartbeat)
        ):
            self._told = heartbeat.count
            tell = functools.partial(_tell_of_stall, self._stall, heartbeat)
            threading.Thread(target=tell, name="stall", daemon=True).start()


def _tell_of_stall(stall: Stall, heartbeat: Heartbeat) -> None:
    try:
        stall.do(heartbeat)
    except Exception as error:
        log.warning("what would tell why nothing goes on failed: %s", error)


class _Pace:
    """The median of the last steps' seconds, without what was done between them."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=RECENT_STEPS)
        self._began: tuple[int, float] | None = None  # a step, and when its first heartbeat came

    def update(self, step: int, doing: str, now: float) -> float | None:
        if self._began and step > self._began[0]:
            self._seconds.append(now - self._began[1])
            self._began = None
        if doing == "train" and self._began is None:
            self._began = step, now
        return statistics.median(self._seconds) if self._seconds else None
