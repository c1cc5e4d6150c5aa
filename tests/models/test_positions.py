import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainrig.models.architecture.layer_settings import Rope
from trainrig.models.layer_parts import Rotation


def rotate(vector: torch.Tensor, position: int, theta: float = 10_000.0) -> torch.Tensor:
    rotation = Rotation(torch.tensor([position]), len(vector), Rope(theta=theta))
    return rotation(vector[None, None, None])[0, 0, 0]


def test_position_zero_turns_nothing():
    vector = torch.randn(8)
    assert torch.equal(rotate(vector, 0), vector)


def test_two_channels_rotate_by_one_radian_a_position():
    expected = [math.cos(3), math.sin(3)]
    assert rotate(torch.tensor([1.0, 0.0]), 3).tolist() == pytest.approx(expected, abs=1e-6)


def test_each_channel_rotates_with_the_one_half_a_head_later():
    # The pairs are (0, 2) and (1, 3). The second is slower by a factor theta ** (2 / 4) = 10.
    vector = torch.tensor([1.0, 1.0, 0.0, 0.0])
    expected = [math.cos(2), math.cos(0.2), math.sin(2), math.sin(0.2)]
    assert rotate(vector, 2, theta=100.0).tolist() == pytest.approx(expected, abs=1e-6)


@given(st.integers(0, 500), st.integers(0, 500), st.integers(0, 500), st.integers(0, 2**31))
def test_a_product_of_query_and_key_depends_on_their_distance_alone(query, key, shift, seed):
    q, k = torch.randn(2, 16, generator=torch.Generator().manual_seed(seed))
    here = rotate(q, query) @ rotate(k, key)
    there = rotate(q, query + shift) @ rotate(k, key + shift)
    assert here.item() == pytest.approx(there.item(), abs=2e-3)


def test_lengths_are_kept():
    x = torch.randn(2, 3, 7, 16)
    y = Rotation(torch.arange(7), 16, Rope())(x)
    assert torch.allclose(y.norm(dim=-1), x.norm(dim=-1), atol=1e-5)


def test_bfloat16_is_turned_by_angles_of_float32():
    x = torch.ones(1, 1, 1, 64, dtype=torch.bfloat16)
    position = torch.tensor([1001])  # bfloat16 has only 1000 and 1004
    exact = Rotation(position, 64, Rope())(x.float())
    assert torch.equal(Rotation(position, 64, Rope())(x), exact.bfloat16())
