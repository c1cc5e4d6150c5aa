"""Progress lines of fits that take long."""

import time
from collections.abc import Callable

EVERY = 5.0  # seconds between two lines, and before the first

Tell = Callable[[int, int], None]
"""Called with how many are done, and of how many."""


def ignore_progress(done: int, total: int) -> None:
    """Tell nothing."""


class Progress:
    """Hands lines on to `show`, one in EVERY seconds at the most."""

    def __init__(
        self, show: Callable[[str], object], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`clock` gives seconds."""
        self._show, self._clock = show, clock
        self._begun = self._last = clock()
        self._stage = ""

    @classmethod
    def silent(cls) -> "Progress":
        """One that says nothing."""
        return cls(lambda line: None)

    def stage(self, name: str) -> None:
        """What is done from now on."""
        self._stage = name
        self._say("")

    def count(self, done: int, total: int) -> None:
        """How much of the stage is done."""
        self._say(f", {done:,} of {total:,}")

    def _say(self, more: str) -> None:
        now = self._clock()
        if now - self._last < EVERY:
            return
        self._last = now
        self._show(f"fit: {self._stage}{more}, {now - self._begun:.0f} s")
