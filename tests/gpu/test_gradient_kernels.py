"""Elementwise operations on gradients in one kernel, compared with plain torch."""

import itertools

import pytest
import torch

from trainrig.hardware import runs_kernels
from trainrig.parallel.sharding import cast_weights
from trainrig.parallel.sharding.gradient_norm import sum_rows

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU; run by `make gpu`"),
]


def draw(*shape, dtype=torch.float32):
    generator = torch.Generator("cuda").manual_seed(len(shape))
    return torch.randn(shape, generator=generator, device="cuda", dtype=dtype)


def test_the_kernels_run_here():
    assert runs_kernels(torch.device("cuda", torch.cuda.current_device()))


@pytest.mark.parametrize("shape", [(1,), (7, 3), (4096,), (1000, 2049), (0, 4)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_sums_equal_plain_torch_bit_exactly(shape, dtype):
    first = draw(*shape, dtype=dtype)
    second = draw(*shape, dtype=dtype)
    total = cast_weights.widen(first)
    assert torch.equal(total, first.float()) and total.dtype == torch.float32
    expected = total + second
    cast_weights.add_widened(total, second)
    assert torch.equal(total, expected)


def test_non_contiguous_gradients_are_added_too():
    total = draw(30, 40)
    gradient = draw(40, 30, dtype=torch.bfloat16).t()
    expected = total + gradient
    cast_weights.add_widened(total, gradient)
    assert torch.equal(total, expected)
    assert torch.equal(cast_weights.widen(gradient), gradient.float())


@pytest.mark.parametrize(
    "shape", [(4096, 1001), (513,), (3, 2**17), (3, 70_001), (64, 8192), (5, 2, 700)]
)
def test_a_rows_sum_is_bit_identical_in_any_slice(shape):
    gradient = draw(*shape)
    sums = sum_rows(gradient)
    ends = sorted({0, 1, len(gradient) // 3, len(gradient) - 1, len(gradient)})
    parts = [sum_rows(gradient[low:high].clone()) for low, high in itertools.pairwise(ends)]
    assert torch.equal(torch.cat(parts), sums)
    expected = gradient.double().square().flatten(1).sum(1) if gradient.ndim > 1 else None
    expected = gradient.double().square() if expected is None else expected
    torch.testing.assert_close(sums, expected, rtol=1e-14, atol=0)


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_a_sum_of_non_finite_values_is_not_finite(value):
    gradient = draw(3, 9000)
    gradient[1, 8500] = value
    assert sum_rows(gradient).isfinite().tolist() == [True, False, True]
