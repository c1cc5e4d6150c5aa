"""Decides whether and when a run that ended is started again.

Each cause has a budget of its own. A failure that comes again where it came before would come for
ever, whatever is left of the budget: cause, message (without what changes from try to try) and
progress tell whether it is the same.
"""

from dataclasses import dataclass, field

from trainrig.launch.supervise.end_causes import Cause, RunEnd
from trainrig.launch.supervise.limits import Limits
from trainrig.processes.retry_policy import FailureHistory, GiveUp, compute_back_off, normalise


def build_signature(end: RunEnd) -> tuple[Cause, str]:
    """What two ends have in common when they are the same failure."""
    return end.cause, normalise(end.message)


@dataclass
class Retries:
    """The ends of one attempt so far, and what follows from each."""

    limits: Limits
    _used: dict[Cause, int] = field(default_factory=dict)
    _history: FailureHistory = field(default_factory=FailureHistory)
    _farthest: int = -1
    _fruitless: int = 0  # ends in a row that got no farther than those before

    def decide_retry(self, end: RunEnd, progress: int) -> float | GiveUp:
        """Seconds to wait after `end`, with `progress` (steps, or files) made in all."""
        budget = self.limits.get_budget(end.cause)
        used = self._used.get(end.cause, 0)
        if not budget:
            return GiveUp()
        if self._came_before(end, progress):
            return GiveUp("the same failure came twice at the same place")
        if used >= budget:
            return GiveUp(f"begun again after '{end.cause}' {used} times, which is all it may")
        self._used[end.cause] = used + 1
        self._fruitless = 0 if progress > self._farthest else self._fruitless + 1
        self._farthest = max(self._farthest, progress)
        return compute_back_off(self.limits.back_off, self.limits.longest_back_off, self._fruitless)

    def _came_before(self, end: RunEnd, progress: int) -> bool:
        if end.cause == "preempted":  # a machine that is taken back says nothing about the run
            return False
        return self._history.repeats(build_signature(end), progress)
