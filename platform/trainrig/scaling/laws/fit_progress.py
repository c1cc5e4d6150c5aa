"""Progress lines of slow fits."""

import time
from collections.abc import Callable

EVERY = 5.0  # seconds between two lines, and before the first

ReportProgress = Callable[[int, int], None]
"""Called with how many are done, and of how many."""


def ignore_progress(done: int, total: int) -> None:
    """Ignore the progress: the default for functions that report it."""


class Progress:
    """Progress reporter that passes lines to `show`, at most one in EVERY seconds."""

    def __init__(
        self, show: Callable[[str], object], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Start the clock, a function that returns seconds."""
        self._show = show
        self._clock = clock
        self._begun = self._last = clock()
        self._stage = ""

    @classmethod
    def silent(cls) -> "Progress":
        """Return a reporter that prints nothing."""
        return cls(lambda line: None)

    def stage(self, name: str) -> None:
        """Report that the stage `name` begins."""
        self._stage = name
        self._say("")

    def count(self, done: int, total: int) -> None:
        """Report how many steps of the current stage are done."""
        self._say(f", {done:,} of {total:,}")

    def _say(self, more: str) -> None:
        now = self._clock()
        if now - self._last < EVERY:
            return
        self._last = now
        self._show(f"fit: {self._stage}{more}, {now - self._begun:.0f} s")
