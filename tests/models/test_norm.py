import pytest
import torch

from trainrig.models.architecture.layer_settings import RMSNorm
from trainrig.models.architecture.shapes import NormShape
from trainrig.models.layer_parts import Norm


def build_norm(channels, epsilon=1e-5, **settings):
    return Norm(NormShape(channels), RMSNorm(epsilon=epsilon, **settings))


def test_a_hand_worked_vector_is_divided_by_its_root_mean_square():
    norm = build_norm(2, 1e-30)
    assert norm(torch.tensor([3.0, 4.0])).tolist() == pytest.approx([3 / 12.5**0.5, 4 / 12.5**0.5])


def test_the_norm_equals_torchs_with_any_gain():
    x = torch.randn(3, 5, 16)
    ours = build_norm(16)
    theirs = torch.nn.RMSNorm(16, 1e-5)
    gain = torch.randn(16)
    with torch.no_grad():
        ours.weight.copy_(gain)
        theirs.weight.copy_(gain)
    assert torch.equal(ours(x), theirs(x))


def test_zeros_stay_zeros():
    assert torch.equal(build_norm(4)(torch.zeros(4)), torch.zeros(4))


@pytest.mark.filterwarnings("error")
def test_bfloat16_goes_in_and_out_of_a_float32_gain_with_the_mean_taken_in_float32():
    # The sum of 300 squared over 4,096 channels would lose its last terms in bfloat16.
    x = torch.full((4096,), 300.0, dtype=torch.bfloat16)
    y = build_norm(4096)(x)
    assert y.dtype == torch.bfloat16
    assert torch.equal(y, torch.ones_like(y))
