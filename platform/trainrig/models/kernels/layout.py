"""Memory layout of attention outputs: the heads of a place are contiguous.

The projection after attention reads them so, and torch's kernels write them so. An operator must
tell a compiler the layout that it really uses, so both its implementation and its shape function
use this.

Shapes: B rows, T places of a row, H heads, D channels of one head.
"""

from torch import Tensor


def allocate_by_place(x_BHTD: Tensor) -> Tensor:
    """Return an empty tensor [B, H, T, D] like `x_BHTD`, with the heads of a place contiguous."""
    rows, heads, places, width = x_BHTD.shape
    return x_BHTD.new_empty((rows, places, heads, width)).transpose(1, 2)
