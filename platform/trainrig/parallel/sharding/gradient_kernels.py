"""Triton kernels that add gradients and sum rows; importable only where Triton is installed."""

import itertools
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

NUMBERS = 4096  # numbers added per program of 8 warps: four 16-byte loads per thread
WARPS = 8
AT_ONCE = 1024  # numbers of a row that are loaded at once


def add(total: Tensor, gradient: Tensor, *, first: bool) -> None:
    """Add `gradient` to the float32 `total`, or write it there if it is the `first`.

    Both must be contiguous and of the same shape.
    """
    count = total.numel()
    if count == 0:
        return
    with torch.cuda.device(total.device):
        _add[(triton.cdiv(count, NUMBERS),)](
            total, gradient, count, first=first, block=NUMBERS, num_warps=WARPS
        )


def sum_rows(tensors_RC: Sequence[Tensor], firsts: Sequence[int], sums: Tensor) -> None:
    """Write the sum of the squares of each row of all `tensors_RC` into the float64 `sums`.

    The tensors are float32 and contiguous. The rows of each go to `sums` from its index in `firsts`
    on.
    """
    rows = [len(tensor) for tensor in tensors_RC]
    ends = list(itertools.accumulate(rows))
    if not ends or not ends[-1]:
        return
    given = [tensor.data_ptr() for tensor in tensors_RC]
    widths = [tensor.shape[1] for tensor in tensors_RC]
    table = torch.tensor([given, widths, list(firsts), [0, *ends[:-1]]], dtype=torch.int64)
    device = sums.device
    with torch.cuda.device(device):
        _sum_rows[(ends[-1],)](
            table.pin_memory().to(device, non_blocking=True),
            sums,
            len(given),
            doublings=len(given).bit_length(),
            block=AT_ONCE,
            num_warps=4,
        )


@triton.jit  # type: ignore[untyped-decorator]
def _add(total, gradient, count, first: tl.constexpr, block: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = at < count
    x = tl.load(gradient + at, mask=inside).to(tl.float32)
    if not first:
        x += tl.load(total + at, mask=inside)
    tl.store(total + at, x, mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _sum_rows(table, sums, count, doublings: tl.constexpr, block: tl.constexpr):  # type: ignore[no-untyped-def]
    number = tl.program_id(0).to(tl.int64)
    # Find the last tensor that begins at or before this row.
    low, high = 0, count
    for _ in range(doublings):
        middle = (low + high) // 2
        before = tl.load(table + 3 * count + middle) <= number
        low = tl.where((high - low > 1) & before, middle, low)
        high = tl.where((high - low > 1) & (before == 0), middle, high)
    row = number - tl.load(table + 3 * count + low)
    width = tl.load(table + count + low)
    own = tl.load(table + low).to(tl.pointer_type(tl.float32)) + row * width
    lanes = tl.arange(0, block)
    total = tl.zeros([block], tl.float64)
    for start in range(0, width, block):
        x = tl.load(own + start + lanes, mask=start + lanes < width, other=0.0).to(tl.float64)
        total += x * x
    tl.store(sums + tl.load(table + 2 * count + low) + row, tl.sum(total, 0))
