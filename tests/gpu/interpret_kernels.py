"""Run the Triton kernels in Triton's interpreter, where there is Triton and no GPU.

`python tests/gpu/interpret_kernels.py` compares their results with float64. It does not show that
they compile, nor how fast they are; `make gpu` does.
"""

import contextlib
import os
import sys
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"
sys.path[:0] = [str(Path(__file__).parents[2] / part) for part in ("platform", "tests")]

import torch  # noqa: E402
from gpu.attention_rows import RINGS, ROWS, Rows  # noqa: E402

from trainrig.models.kernels import kernel_support  # noqa: E402
from trainrig.parallel.sharding import gradient_kernels, gradient_norm  # noqa: E402

# Shares of norms. bfloat16 is missing, because the interpreter's products treat it as integers.
BOUNDS = {torch.float32: 2e-6, torch.float16: 2e-3}
H100 = 232_448  # bytes of shared memory, to get the tiles of an H100
SHAPES = [(3, 2**17), (4,), (5, 2, 300), (2, 66_666), (2, 33_333), (0, 4)]


def compare_attention(given: Rows, dtype: torch.dtype, in_ring: bool) -> float:
    """Return the largest error of the output and of the gradients, as shares of norms."""
    drawn = given.draw("cpu", dtype)
    found = drawn.attend_in_ring() if in_ring else drawn.attend("triton")
    pairs = zip(found, drawn.attend_plainly(torch.float64), strict=True)
    return max(float((ours - exact).norm() / exact.norm()) for ours, exact in pairs)


def compare_rows() -> float:
    """Return the largest relative error of the row sums, between kernels and plain torch."""
    gradients = [torch.randn(shape) for shape in SHAPES]
    firsts = [20, 3, 8, 30, 35, 38]
    found = []
    for interpreted in (False, True):
        gradient_norm.runs_kernels = lambda _, interpreted=interpreted: interpreted  # type: ignore[assignment]
        found.append(torch.zeros(40, dtype=torch.float64))
        gradient_norm.sum_all_rows(gradients, firsts, found[-1])
    return float(((found[0] - found[1]).abs() / found[0].clamp(min=1e-9)).max())


def compare_sums() -> bool:
    """Return whether gradients are widened and added bit-exactly."""
    same = True
    for count in (1, 5, 4096, 10_001):
        first, second = torch.randn(2, count).bfloat16()
        total = torch.empty(count)
        gradient_kernels.add(total, first, first=True)
        same &= torch.equal(total, first.float())
        gradient_kernels.add(total, second, first=False)
        same &= torch.equal(total, first.float() + second)
    return same


def main() -> int:
    """Return the exit code: 1 if any comparison failed."""
    torch.manual_seed(0)
    torch.cuda.device = lambda _: contextlib.nullcontext()  # type: ignore[assignment, misc]
    torch.Tensor.pin_memory = lambda self: self  # type: ignore[assignment, method-assign]
    worst = dict.fromkeys(BOUNDS, 0.0)
    kernel_support.find_shared_memory = lambda _: H100
    for given, in_ring in [*((row, False) for row in ROWS), *((row, True) for row in RINGS)]:
        for dtype in BOUNDS:
            error = compare_attention(given, dtype, in_ring)
            worst[dtype] = max(worst[dtype], error)
            print(f"{error:.1e} {dtype}{' in a ring' if in_ring else ''}: {given}", flush=True)
    rows_off = compare_rows()
    same = compare_sums()
    print(f"rows: {rows_off:.1e}; sums to the bit: {same}")
    near = all(worst[dtype] < bound for dtype, bound in BOUNDS.items())
    return 0 if near and rows_off < 1e-13 and same else 1


if __name__ == "__main__":
    sys.exit(main())
