"""Decisions on whether and when a run that ended is retried.

Each cause has its own number of retries. A failure that repeats at the same place would repeat for
ever, so it is not retried, whatever is left. Two failures are the same if their cause, their
message (without the parts that change from try to try) and the progress are equal.
"""

from dataclasses import dataclass, field

from trainrig.launch.supervise.end_causes import Cause, RunEnd
from trainrig.launch.supervise.limits import Limits
from trainrig.processes.retry_policy import FailureHistory, GiveUp, compute_back_off, normalise


def build_signature(end: RunEnd) -> tuple[Cause, str]:
    """Return what two ends share if they are the same failure: cause and normalised message."""
    return end.cause, normalise(end.message)


@dataclass
class Retries:
    """The ends of one attempt so far, and the retries that are left."""

    limits: Limits
    _used: dict[Cause, int] = field(default_factory=dict)
    _history: FailureHistory = field(default_factory=FailureHistory)
    _farthest: int = -1
    _fruitless: int = 0  # number of ends in a row without new progress

    def decide_retry(self, end: RunEnd, progress: int) -> float | GiveUp:
        """Return the seconds to wait before a retry after `end`, or GiveUp.

        `progress` is the total of steps, or of files, that the run has finished.
        """
        budget = self.limits.get_budget(end.cause)
        used = self._used.get(end.cause, 0)
        if not budget:
            return GiveUp()
        if self._came_before(end, progress):
            return GiveUp("the same failure occurred twice at the same point")
        if used >= budget:
            return GiveUp(
                f"retried {used} {'time' if used == 1 else 'times'} after '{end.cause}', "
                "which is the limit"
            )
        self._used[end.cause] = used + 1
        self._fruitless = 0 if progress > self._farthest else self._fruitless + 1
        self._farthest = max(self._farthest, progress)
        return compute_back_off(self.limits.back_off, self.limits.longest_back_off, self._fruitless)

    def _came_before(self, end: RunEnd, progress: int) -> bool:
        if end.cause == "preempted":  # a preemption is no failure of the run
            return False
        return self._history.repeats(build_signature(end), progress)
