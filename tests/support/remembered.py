"""Results that a fixture makes once for each set of arguments."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

Made = TypeVar("Made")


def remember(make: Callable[..., Made]) -> Callable[..., Made]:
    """Return a function that calls `make` once for arguments of the same `repr`."""
    known: dict[str, Made] = {}
    signature = inspect.signature(make)

    @functools.wraps(make)
    def find(*arguments: Any, **named: Any) -> Made:
        bound = signature.bind(*arguments, **named)
        bound.apply_defaults()
        key = repr(bound.arguments)
        if key not in known:
            known[key] = make(*arguments, **named)
        return known[key]

    return find
