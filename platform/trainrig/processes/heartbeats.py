"""What a rank tells whoever supervises it, and is told: beats there, a wish to stop back.

It knows no Ray: `Reporter` is given the function that carries a beat to the supervisor.
"""

import dataclasses
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

RECENT_STEPS = 31  # whose median says how long a step takes
LONGEST_PAUSE = 1.0  # s between two beats that are sent: a wish to stop comes back with one
OF_A_HANG = 0.1  # of what counts as a hang, at the most: what is told late must not look like one


class Watch(Protocol):
    """The supervisor, as a rank sees it."""

    def beat(self, step: int, doing: str) -> None:
        """Say that `step` updates are done and `doing` goes on. Never blocks, never raises."""

    def stop_wanted(self) -> bool:
        """Whether this rank was asked to stop. The others may not know yet: agree with them."""


class _Nobody:
    """Supervises no one."""

    def beat(self, step: int, doing: str) -> None:
        """Go unheard."""

    def stop_wanted(self) -> bool:
        """Never."""
        return False


UNWATCHED: Watch = _Nobody()


@dataclass(frozen=True)
class Beat:
    """The last that a rank said, and what it knows of its own pace."""

    rank: int
    pids: tuple[int, ...]  # of the rank, and of who keeps it
    node: str  # as the supervisor calls it
    count: int = 0  # of beats so far: one that stays the same means no progress
    step: int = 0  # updates done
    doing: str = "start"
    # False while the attempt does this for the first time: it may be compiling.
    usual: bool = False
    step_seconds: float | None = None  # median of the last few; None before the first is done


def pause(least: float, beat: Beat, hang_seconds: float) -> float:
    """Seconds until there is something to tell after `beat`: half a step, within bounds.

    Each time that a rank tells it, and that its supervisor asks, takes milliseconds of a CPU.
    """
    longest = min(LONGEST_PAUSE, OF_A_HANG * hang_seconds)
    return max(least, min(longest, (beat.step_seconds or 0.0) / 2))


class Reporter:
    """A watch whose thread exchanges the newest beat for the wish to stop, every so often.

    The training thread only leaves its beat where the other finds it.
    """

    def __init__(
        self, first: Beat, exchange: Callable[[Beat], bool], every: float, hang_seconds: float
    ) -> None:
        """`exchange` may block and raise: a supervisor that is gone stops nobody. `every`: s at
        least; `hang_seconds`: without progress that are a hang. See `pause`."""
        self._beat = first
        self._exchange, self._every, self._hang_seconds = exchange, every, hang_seconds
        self._pace = _Pace()
        self._done: set[str] = set()  # what was done at least once, to its end
        self._stop = False
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._report, name="watch", daemon=True)
        self._thread.start()

    def beat(self, step: int, doing: str) -> None:
        """See Watch."""
        before = self._beat
        if (before.step, before.doing) != (step, doing):
            self._done.add(before.doing)
        self._beat = dataclasses.replace(
            before,
            count=before.count + 1,
            step=step,
            doing=doing,
            usual=doing in self._done,
            step_seconds=self._pace.after(step, doing, time.monotonic()),
        )

    def stop_wanted(self) -> bool:
        """See Watch."""
        return self._stop

    @property
    def step(self) -> int:
        """Updates done, by the last beat."""
        return self._beat.step

    def close(self) -> None:
        """Exchange the last beat, and no more."""
        self._closed.set()
        self._thread.join()

    def _report(self) -> None:
        closed = False
        while True:
            try:
                self._stop = self._exchange(self._beat) or self._stop
            except Exception as error:
                del error  # whoever supervises sees that nothing comes; this rank trains on
            if closed:
                return
            closed = self._closed.wait(pause(self._every, self._beat, self._hang_seconds))


class _Pace:
    """The median of the last steps' seconds, without what was done between them."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=RECENT_STEPS)
        self._began: tuple[int, float] | None = None  # a step, and when its first beat came

    def after(self, step: int, doing: str, now: float) -> float | None:
        if self._began and step > self._began[0]:
            self._seconds.append(now - self._began[1])
            self._began = None
        if doing == "train" and self._began is None:
            self._began = step, now
        return statistics.median(self._seconds) if self._seconds else None
