"""What a cloud says to a machine about that machine's end, whichever cloud it is."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Notice:
    """That this machine may go, or will."""

    what: str  # in the cloud's own words
    # When it goes, as time.time() counts; None: it may, and nobody says when. Only a machine that
    # will go is left at once: a warning that comes to nothing would cost a restart.
    deadline: float | None


class Unclear(Exception):
    """The cloud could not be asked, or said what nobody understands. That is never a notice."""


class NoticeSource(Protocol):
    """Where one cloud leaves its notices."""

    pause: float  # s between two looks

    def look(self) -> Notice | None:
        """What holds now; None if nothing does. Raises Unclear. Takes seconds at the most."""

    def over(self) -> bool:
        """Whether there is nothing more to come."""
