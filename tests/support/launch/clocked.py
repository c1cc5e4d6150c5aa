"""A clock under the tests' control: its `sleep` returns at once and advances the time."""

from collections.abc import Callable

PATIENCE = 3_600.0  # s: ends a broken test, which would run for ever


class Clock:
    """Seconds since the clock was made, advanced by `sleep` alone."""

    def __init__(self) -> None:
        self.now = 0.0
        self.after_sleep: Callable[[], None] = lambda: None  # called after each sleep

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        assert self.now < PATIENCE
        self.after_sleep()
