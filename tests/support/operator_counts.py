"""Counts of the operators that torch dispatches."""

from collections.abc import Callable
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode


class CountedOperators(TorchDispatchMode):
    """Counter of the operators in the block that `is_counted` accepts."""

    def __init__(self, is_counted: Callable[[Any], bool]) -> None:
        super().__init__()
        self.count = 0
        self._is_counted = is_counted

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.count += self._is_counted(function)
        return function(*args, **(kwargs or {}))
