"""Stages that are interrupted in the middle of their work."""

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest


@contextlib.contextmanager
def interrupt_after(calls: int, owner: object, name: str) -> Iterator[None]:
    """Interrupt the block in the call of `owner.name` that follows so many `calls`.

    The block must end by it.
    """
    function = getattr(owner, name)
    made = 0

    def call(*arguments: Any, **settings: Any) -> Any:
        nonlocal made
        if made == calls:
            raise KeyboardInterrupt
        made += 1
        return function(*arguments, **settings)

    with mock.patch.object(owner, name, call), pytest.raises(KeyboardInterrupt):
        yield
