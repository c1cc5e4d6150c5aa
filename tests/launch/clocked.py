"""A clock that tests turn: who sleeps by it wakes at once, later."""

from collections.abc import Callable

PATIENCE = 3_600.0  # s: a bound for what is broken, which would go on for ever


class Clock:
    """Seconds since it was made, as those who sleep by it have let pass."""

    def __init__(self) -> None:
        self.now = 0.0
        self.after_sleep: Callable[[], None] = lambda: None  # is done whenever somebody has slept

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        assert self.now < PATIENCE
        self.after_sleep()
