import functools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.operator_counts import CountedOperators

from trainrig.parallel.sharding import gradient_norm
from trainrig.parallel.sharding.gradient_norm import sum_rows


@given(
    rows=st.integers(1, 9),
    width=st.integers(1, 70),
    cut=st.integers(0, 9),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_row_adds_up_to_the_same_bits_in_whatever_slice_it_lies(rows, width, cut, seed):
    generator = torch.Generator().manual_seed(seed)
    whole = torch.randn(rows, width, generator=generator) * 10 ** torch.randint(
        -6, 6, (rows, width), generator=generator
    )
    parts = [sum_rows(whole[:cut].clone()), sum_rows(whole[cut:].clone())]
    assert torch.cat(parts).numpy().tobytes() == sum_rows(whole).numpy().tobytes()


@pytest.mark.parametrize("shape", [(7,), (5, 3), (4, 1), (3, 2, 5), (0, 4), (1, 1000)])
def test_row_sums_are_sums_of_squares(shape):
    gradient = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    expected = gradient.double().square().reshape(shape[0], -1).sum(1) if shape[0] else []
    np.testing.assert_allclose(sum_rows(gradient).numpy(), expected, rtol=1e-14)


def test_how_many_rows_are_worked_on_at_once_changes_nothing(monkeypatch):
    gradient = torch.randn(20, 33, generator=torch.Generator().manual_seed(0))
    at_once = sum_rows(gradient)
    monkeypatch.setitem(gradient_norm.CHUNK_ELEMENTS, "cpu", 40)
    assert torch.equal(sum_rows(gradient), at_once)
    assert gradient[0, 0] == torch.randn(20, 33, generator=torch.Generator().manual_seed(0))[0, 0]


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_sums_of_nonfinite_rows_are_not_finite(value):
    gradient = torch.ones(3, 5)
    gradient[1, 4] = value
    assert torch.isfinite(sum_rows(gradient)).tolist() == [True, False, True]


Kernels = functools.partial(CountedOperators, lambda operator: not operator.is_view)


def test_an_accelerator_is_asked_for_few_large_kernels():
    """The model has 1.3 billion parameters in 24 layers of 7 matrices, on a meta device."""
    shapes = [(2048, 2048)] * 4 + [(8192, 2048)] * 2 + [(2048, 8192)]
    with Kernels() as kernels:
        for shape in shapes * 24:
            sum_rows(torch.empty(shape, device="meta"))
    assert kernels.count / (24 * len(shapes)) < 18
