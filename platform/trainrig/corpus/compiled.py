"""Functions compiled by numba when first called, and kept on disk for the processes after.

What a function calls is compiled into it, but only its own file is watched: after a change to a
callee, remove the `*.nbi` files beside it.
"""

from collections.abc import Callable
from typing import TypeVar, cast

import numba

_Function = TypeVar("_Function", bound=Callable[..., object])


def compiled(function: _Function) -> _Function:
    """`function`, as machine code without Python's lock. Integers wrap round, as numpy's do."""
    return cast(_Function, numba.njit(cache=True, nogil=True)(function))
