import numpy as np
import pytest

from trainrig.optim.noise_scale import RECENT, NoiseEstimate, RunningNoiseScale, estimate_noise


def test_the_known_values_of_two_batch_sizes():
    """Use appendix A.1 of McCandlish et al. 2018: squared norms 3 at 8 targets and 1.5 at 64."""
    found = estimate_noise(3.0, 8, 1.5, 64)
    assert found.gradient_squared == pytest.approx(9 / 7)
    assert found.trace == pytest.approx(96 / 7)
    assert found.trace / found.gradient_squared == pytest.approx(32 / 3)


def test_the_noise_scale_of_synthetic_gradients_is_recovered():
    dice = np.random.default_rng(0)
    true_C = dice.normal(size=40)
    spread = 3.0
    scale = RunningNoiseScale()
    for _ in range(RECENT):
        each_BC = true_C + dice.normal(size=(64, 40)) * spread
        parts_VC = each_BC.reshape(8, 8, 40).mean(1)
        small = (parts_VC**2).sum(1).mean()
        big = (each_BC.mean(0) ** 2).sum()
        scale.add(estimate_noise(small, 8, big, 64))
    expected = 40 * spread**2 / (true_C**2).sum()
    assert scale.estimate() == pytest.approx(expected, rel=0.1)


def test_a_gradient_within_its_noise_has_no_scale():
    scale = RunningNoiseScale()
    assert scale.estimate() is None
    scale.add(NoiseEstimate(-1.0, 3.0))
    assert scale.estimate() is None
    scale.add(NoiseEstimate(2.0, 3.0))
    assert scale.estimate() == 6.0


def test_batches_of_one_size_tell_nothing():
    with pytest.raises(ValueError, match="a small and a larger batch"):
        estimate_noise(1.0, 8, 1.0, 8)
