"""Parts of a retry policy that supervisors share: repeated failures, back-off and giving up.

Limits are set elsewhere: `train/elastic/restart_policy.py` counts restarts without a new
checkpoint, `launch/supervise/attempt_ends.py` has a budget for each cause.
"""

import re
from collections.abc import Hashable
from dataclasses import dataclass, field

# The parts that differ between two messages about the same failure.
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
    """Verdict that another attempt is no use; `reason` is empty where it is obvious."""

    reason: str = ""


def normalise(message: str) -> str:
    """Replace the varying parts of `message`, so that messages of the same failure are equal."""
    return VARYING.sub("#", message)


@dataclass
class FailureHistory:
    """The failures so far, with the most progress that was made before each."""

    last_only: bool = False  # True: compare with the last failure only
    _farthest: dict[Hashable, int] = field(default_factory=dict)

    def repeats(self, signature: Hashable, progress: int) -> bool:
        """Record a failure and return whether it repeats an earlier one without more progress.

        Equal signatures mean the same failure. A signature None matches no other failure.
        """
        before = None if signature is None else self._farthest.get(signature)
        if self.last_only:
            self._farthest.clear()
        if signature is not None:
            self._farthest[signature] = progress if before is None else max(progress, before)
        return before is not None and progress <= before


def compute_back_off(first: float, longest: float, doublings: int) -> float:
    """Return the seconds to wait: `first`, doubled `doublings` times, but at most `longest`."""
    # 2.0 ** 1024 overflows a float, and the maximum is reached long before.
    return min(longest, first * 2.0 ** min(doublings, 60))
