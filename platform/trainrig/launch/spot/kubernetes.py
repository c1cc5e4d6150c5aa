"""Kubernetes: a pod is told by SIGTERM that it ends, and by its `preStop` hook a little earlier.

SIGTERM comes to the agent and to Ray at the same moment, and Ray ends its workers on it. So the
agent best runs as the `preStop` hook of the container with Ray, which Kubernetes waits for before
it sends SIGTERM to that container: `python -m trainrig.launch.spot --provider kubernetes --now`.
"""

import signal
import time
from types import FrameType

from trainrig.launch.spot.notices import Notice

# s from the notice to SIGKILL, `preStop` included: what a pod has that names no
# `terminationGracePeriodSeconds`.
GRACE = 30.0
LEFT_FOR_RAY = 3.0  # s of it in which Ray ends its own processes


class PodEnd:
    """The end of this pod, as it is told of it."""

    pause = 0.2  # s between two looks, at a variable

    def __init__(self, grace: float, now: bool) -> None:
        """`grace`: seconds from the signal to the end. `now`: the signal has come, as it were."""
        self._grace = grace
        self._ended: float | None = time.time() + grace if now else None
        signal.signal(signal.SIGTERM, self._end)

    def look(self) -> Notice | None:
        """See Source."""
        return None if self._ended is None else Notice("the pod ends", self._ended)

    def over(self) -> bool:
        """See Source. Whoever returns from `preStop` early has Ray told to end early."""
        return self._ended is not None and time.time() > self._ended - LEFT_FOR_RAY

    def _end(self, number: int, frame: FrameType | None) -> None:
        if self._ended is None:
            self._ended = time.time() + self._grace
