"""Preemption notices of Kubernetes: SIGTERM to the pod, and its `preStop` hook before that.

The agent is the process that passes notices on to the run. SIGTERM reaches the agent and Ray at the
same moment, and Ray then ends its workers. So the agent should be the `preStop` hook of the
container that runs Ray. Kubernetes waits for the hook before it sends SIGTERM:
`python -m trainrig.launch.spot --provider kubernetes --now`.
"""

import signal
import time
from types import FrameType

from trainrig.launch.spot.notices import Notice

# Seconds from the notice to SIGKILL, `preStop` included: the default of
# `terminationGracePeriodSeconds`.
GRACE = 30.0
LEFT_FOR_RAY = 3.0  # seconds of the grace in which Ray ends its own processes


class PodEnd:
    """Notice of the end of this pod, from SIGTERM."""

    pause = 0.2  # seconds between two polls, which only read a variable

    def __init__(self, grace: float, now: bool) -> None:
        """Install a handler of SIGTERM.

        `grace` is the time from the signal to the end in seconds. `now` acts as if the signal had
        come already.
        """
        self._grace = grace
        self._end_time: float | None = time.time() + grace if now else None
        signal.signal(signal.SIGTERM, self._end)

    def look(self) -> Notice | None:
        """Return the notice once SIGTERM has come; see NoticeSource."""
        return None if self._end_time is None else Notice("the pod ends", self._end_time)

    def over(self) -> bool:
        """Return whether the agent should end; see NoticeSource.

        A `preStop` hook that returns earlier makes Kubernetes send SIGTERM to Ray earlier.
        """
        return self._end_time is not None and time.time() > self._end_time - LEFT_FOR_RAY

    def _end(self, number: int, frame: FrameType | None) -> None:
        if self._end_time is None:
            self._end_time = time.time() + self._grace
