"""Waiting for a condition with a deadline, instead of sleeping and hoping."""

import subprocess
import time
from collections.abc import Callable
from typing import Any, TypeVar

PATIENCE = 120.0  # s: far above what any condition takes, to end a broken test
Found = TypeVar("Found")


def wait_until(
    find: Callable[[], Found],
    why: Callable[[], object] = lambda: None,
    process: "subprocess.Popen[Any] | None" = None,
    seconds: float = PATIENCE,
    every: float = 0.01,
) -> Found:
    """Call `find` again and again, and return its first true result.

    Args:
        find: Reads the state that the test waits for.
        why: Returns what is shown if the wait fails.
        process: The wait fails as soon as this process ends.
        seconds: Time after which the wait fails.
        every: Seconds between two calls.
    """
    deadline = time.monotonic() + seconds
    while not (found := find()):
        assert process is None or process.poll() is None, ("the process ended", why())
        assert time.monotonic() < deadline, (f"not within {seconds} s", why())
        time.sleep(every)
    return found
