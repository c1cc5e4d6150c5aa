"""Elementwise operations on gradients, in one pass over memory on a GPU.

They use Triton (Tillet et al. 2019, doi 10.1145/3315508.3329973) where available, otherwise plain
torch. torch has no kernel with wide loads for two dtypes: on an H200 it adds bfloat16 to float32 at
1.5 of 4.3 TB/s. Sums in a fixed order take torch one kernel for every halving of a row: two
thousand for a model of 1.3B parameters, which took the host longer to launch (0.1 s) than the
device to run (parallel/norm.py).
"""

import torch
from torch import Tensor

from trainrig.hardware import runs_kernels


def widen(gradient: Tensor) -> Tensor:
    """Return a float32 copy of `gradient` with the same memory layout."""
    if not (runs_kernels(gradient.device) and gradient.is_contiguous()):
        return gradient.float()
    from trainrig.parallel.gradients import triton_kernels

    total = torch.empty_like(gradient, dtype=torch.float32)
    triton_kernels.add(total, gradient, first=True)
    return total


def add_widened(total: Tensor, gradient: Tensor) -> None:
    """Add `gradient` to `total` in float32, in place; Triton and torch give the same bits."""
    alike = total.is_contiguous() and gradient.is_contiguous()
    if not (runs_kernels(total.device) and alike and total.dtype == torch.float32):
        total.add_(gradient)
        return
    from trainrig.parallel.gradients import triton_kernels

    triton_kernels.add(total, gradient, first=False)
