"""The retry policy that supervisors share: is it the same failure again, how long to back off, and
the verdict that another attempt is no use.

What they count differs, and is theirs: restarts without a new checkpoint in
`train/elastic/restart_policy.py`, a budget for each cause in `launch/supervise/retries.py`.
"""

import re
from collections.abc import Hashable
from dataclasses import dataclass, field

# What differs between two messages about the same failure.
VARYING = re.compile(
    r"""[^\s'"]*/[^\s'":]*          # paths and URLs
      | \b0x[0-9a-f]+\b             # addresses
      | \b(?=\d*[a-f])(?=[a-f]*\d)[0-9a-f]+\b  # hashes, ids
      | [+-]?\d+(?:[.,]\d+)*(?:e[+-]?\d+)?  # all numbers
    """,
    re.IGNORECASE | re.VERBOSE,
)


@dataclass(frozen=True)
class GiveUp:
    """Another attempt would be no better; why, in words, empty where nobody would expect one."""

    reason: str = ""


def normalise(message: str) -> str:
    """`message` without what changes from attempt to attempt: equal for two of the same failure."""
    return VARYING.sub("#", message)


@dataclass
class FailureHistory:
    """Which failures there were, and how far each had come."""

    last_only: bool = False  # compare with the last failure alone: others between them may matter
    _farthest: dict[Hashable, int] = field(default_factory=dict)

    def repeats(self, signature: Hashable, progress: int) -> bool:
        """Whether this failure came before, and got no farther since; it is remembered.

        `signature` is equal for two failures that are the same; None is equal to none.
        """
        before = None if signature is None else self._farthest.get(signature)
        if self.last_only:
            self._farthest.clear()
        if signature is not None:
            self._farthest[signature] = progress if before is None else max(progress, before)
        return before is not None and progress <= before


def compute_back_off(first: float, longest: float, doublings: int) -> float:
    """Seconds to wait before another attempt: `first`, doubled so often, and `longest` at most."""
    # 2.0 ** 1024 is more than a float holds; the bound is met long before.
    return min(longest, first * 2.0 ** min(doublings, 60))
