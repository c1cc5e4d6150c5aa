"""How what attention gives is laid out, forward and backward: heads of a place stand together.

So the projection after it reads them, and torch's kernels write them. What an operator says of
itself to a compiler must be what it does, so both ask here.

Shapes: B rows, T places of a row, H heads, D channels of one head.
"""

from torch import Tensor


def allocate_by_place(x_BHTD: Tensor) -> Tensor:
    """[B, H, T, D], of the kind of `x_BHTD`."""
    rows, heads, places, width = x_BHTD.shape
    return x_BHTD.new_empty((rows, places, heads, width)).transpose(1, 2)
