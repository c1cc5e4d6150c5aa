"""Runs the kernels of Triton in its interpreter, where there is Triton and no GPU.

`python tests/gpu/interpret_kernels.py`: what they compute, held to float64; not that they compile,
nor how fast they are, which is `make gpu`'s to say.
"""

import contextlib
import os
import sys
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"
sys.path[:0] = [str(Path(__file__).parents[2] / "platform")]

import torch  # noqa: E402

from trainrig.models.kernels import document_kernel  # noqa: E402
from trainrig.parallel import norm  # noqa: E402
from trainrig.parallel.gradients import triton_kernels  # noqa: E402

# Rows, heads, key heads, places, channels of a head, whether causal, mean length of a document.
DOCUMENTS = [
    (2, 4, 2, 200, 32, True, 30),
    (1, 2, 2, 130, 24, True, 50),
    (2, 2, 1, 150, 64, False, 40),
    (1, 1, 1, 64, 16, True, 1000),
    (1, 2, 2, 300, 128, True, 3),
    (1, 2, 1, 257, 16, False, 7),
]
SHAPES = [(3, 2**17), (4,), (5, 2, 300), (2, 66_666), (2, 33_333), (0, 4)]


def compare_documents(heads, kv_heads, rows, places, width, causal, mean) -> float:
    """The largest error of what is seen, of the sums and of the gradients, as shares of norms."""
    documents = (torch.rand(rows, places) < 1 / mean).long().cumsum(1)
    query, gradient = (torch.randn(rows, places, heads, width).transpose(1, 2) for _ in range(2))
    key, value = (torch.randn(rows, places, kv_heads, width).transpose(1, 2) for _ in range(2))
    given, scale = (query, key, value), width**-0.5
    seen, sums = torch.full_like(query, torch.nan), torch.full(query.shape[:3], torch.nan)
    document_kernel.attend(*given, documents, scale, causal, seen, sums)
    found = tuple(torch.full_like(each, torch.nan) for each in given)
    saved = seen, sums, *given, documents
    document_kernel.differentiate(gradient, *saved, scale, causal, found)

    wide = [each.double().requires_grad_() for each in given]
    mask = documents[:, None, :, None] == documents[:, None, None, :]
    keys, values = (each.repeat_interleave(heads // kv_heads, 1) for each in wide[1:])
    logits = wide[0] @ keys.mT * scale
    logits = logits.masked_fill(~(mask.tril() if causal else mask), -torch.inf)
    exact = logits.softmax(-1) @ values
    gradients = torch.autograd.grad(exact, wide, gradient.double())
    pairs = zip((seen, sums, *found), (exact, logits.logsumexp(-1), *gradients), strict=True)
    with torch.no_grad():
        return max(float((ours - each).norm() / each.norm()) for ours, each in pairs)


def compare_rows() -> float:
    """The largest relative error of the sums of rows that kernels and plain torch give."""
    gradients, firsts = [torch.randn(shape) for shape in SHAPES], [20, 3, 8, 30, 35, 38]
    found = []
    for interpreted in (False, True):
        norm.runs_kernels = lambda _, interpreted=interpreted: interpreted  # type: ignore[assignment]
        found.append(torch.zeros(40, dtype=torch.float64))
        norm.sum_all_rows(gradients, firsts, found[-1])
    return float(((found[0] - found[1]).abs() / found[0].clamp(min=1e-9)).max())


def compare_sums() -> bool:
    """Whether gradients are widened and added to the bit."""
    same = True
    for count in (1, 5, 4096, 10_001):
        first, second = torch.randn(2, count).bfloat16()
        total = torch.empty(count)
        triton_kernels.add(total, first, first=True)
        same &= torch.equal(total, first.float())
        triton_kernels.add(total, second, first=False)
        same &= torch.equal(total, first.float() + second)
    return same


def main() -> int:
    """The exit code: 1 if anything is off."""
    torch.manual_seed(0)
    torch.cuda.device = lambda _: contextlib.nullcontext()  # type: ignore[assignment, misc]
    torch.Tensor.pin_memory = lambda self: self  # type: ignore[assignment, method-assign]
    errors = []
    for rows, heads, kv_heads, *rest in DOCUMENTS:
        errors.append(compare_documents(heads, kv_heads, rows, *rest))
        print(f"documents {(rows, heads, kv_heads, *rest)}: {errors[-1]:.1e}", flush=True)
    rows_off, same = compare_rows(), compare_sums()
    print(f"rows: {rows_off:.1e}; sums to the bit: {same}")
    return 0 if max(errors) < 2e-6 and rows_off < 1e-13 and same else 1


if __name__ == "__main__":
    sys.exit(main())
