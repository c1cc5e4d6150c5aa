"""The terminal, which the progress of a stage and Ray's own progress bars share.

On a terminal, Ray shows the operators of a pipeline while one runs, and the stage's own line
disappears for that time. Elsewhere the stage's own lines alone are printed.
"""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

Suspend = Callable[[], AbstractContextManager[object]]

_suspend: Suspend | None = None  # hides the stage's own line; None without a live terminal


@contextlib.contextmanager
def share_terminal(suspend: Suspend) -> Iterator[None]:
    """Show Ray's progress bars in the block; `suspend` hides the own line while they are shown."""
    global _suspend
    before = _suspend
    _suspend = suspend
    try:
        yield
    finally:
        _suspend = before


def is_shown() -> bool:
    """Return whether Ray's progress bars are shown."""
    return _suspend is not None


def suspend_own() -> AbstractContextManager[object]:
    """Hide the stage's own line in the block, if Ray's progress bars are shown."""
    return _suspend() if _suspend else contextlib.nullcontext()
