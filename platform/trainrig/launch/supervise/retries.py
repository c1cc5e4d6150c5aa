"""Decides whether and when a run that ended is started again.

Each cause has a budget of its own. A failure that comes again where it came before would come for
ever, whatever is left of the budget: cause, message (without what changes from try to try) and
progress tell whether it is the same.
"""

import re
from dataclasses import dataclass, field

from trainrig.launch.supervise.end_causes import Cause, RunEnd
from trainrig.launch.supervise.limits import Limits

# What differs between two messages about the same failure.
VARYING = re.compile(
    r"""[^\s'"]*/[^\s'":]*          # paths and URLs
      | \b0x[0-9a-f]+\b             # addresses
      | \b(?=[a-f]*\d)[0-9a-f]{6,}\b  # hashes, ids
      | [+-]?\d+(?:[.,]\d+)*(?:e[+-]?\d+)?  # all numbers
    """,
    re.IGNORECASE | re.VERBOSE,
)


@dataclass(frozen=True)
class Retry:
    """Begin again after `seconds`."""

    seconds: float


@dataclass(frozen=True)
class StopRetrying:
    """It was the last; `why` is empty where nobody would have expected another."""

    why: str = ""


Decision = Retry | StopRetrying


def signature(end: RunEnd) -> tuple[Cause, str]:
    """What two ends have in common when they are the same failure."""
    return end.cause, VARYING.sub("#", end.message)


@dataclass
class Retries:
    """The ends of one attempt so far, and what follows from each."""

    limits: Limits
    _used: dict[Cause, int] = field(default_factory=dict)
    _seen: dict[tuple[Cause, str], int] = field(default_factory=dict)  # how far each got, at most
    _farthest: int = -1
    _fruitless: int = 0  # ends in a row that got no farther than those before

    def after(self, end: RunEnd, progress: int) -> Decision:
        """What to do after `end`, with `progress` (steps, or files) made in all."""
        budget, used = self.limits.budget(end.cause), self._used.get(end.cause, 0)
        if not budget:
            return StopRetrying()
        if self._came_before(end, progress):
            return StopRetrying("the same failure came twice at the same place")
        if used >= budget:
            return StopRetrying(
                f"begun again after '{end.cause}' {used} times, which is all it may"
            )
        self._used[end.cause] = used + 1
        self._fruitless = 0 if progress > self._farthest else self._fruitless + 1
        self._farthest = max(self._farthest, progress)
        return Retry(self._back_off())

    def _came_before(self, end: RunEnd, progress: int) -> bool:
        if end.cause == "preempted":  # a machine that is taken back says nothing about the run
            return False
        key = signature(end)
        before = self._seen.get(key)
        self._seen[key] = max(progress, progress if before is None else before)
        return before is not None and progress <= before

    def _back_off(self) -> float:
        # 2.0 ** 1024 is more than a float holds; the bound is met long before.
        return min(
            self.limits.longest_back_off, self.limits.back_off * 2.0 ** min(self._fruitless, 60)
        )
