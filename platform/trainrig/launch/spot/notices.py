"""Preemption notices, in a form common to all clouds."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Notice:
    """Notice that this machine may be taken back, or will be."""

    what: str  # event in the cloud's own words
    # End of the machine, as time.time(); None: it may end at an unknown time. The run leaves only a
    # machine that will certainly end, as moving for a false warning would cost a restart.
    deadline: float | None


class Unclear(Exception):
    """The cloud did not answer, or its answer is unknown. This never counts as a notice."""


class NoticeSource(Protocol):
    """Source of the notices of one cloud."""

    pause: float  # seconds between two polls

    def look(self) -> Notice | None:
        """Return the current notice, or None. Raises Unclear. Takes seconds at most."""

    def over(self) -> bool:
        """Return whether no more notices can come."""
