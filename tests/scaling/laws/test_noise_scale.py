"""The gradient's noise scale."""

import numpy as np
import pytest

from trainrig.errors import DataError
from trainrig.scaling.laws.noise_scale import noise_scale


def test_a_pair_gives_the_known_values() -> None:
    found = noise_scale(8, [3.0], 64, [1.5])
    assert found.gradient == pytest.approx(1.285714, rel=1e-6)
    assert found.noise == pytest.approx(13.714286, rel=1e-6)
    assert found.batch == pytest.approx(10.666667, rel=1e-6)


def test_parts_are_averaged_before_their_ratio() -> None:
    found = noise_scale(8, [2.0, 4.0], 64, [1.0, 2.0])
    assert found.batch == pytest.approx(noise_scale(8, [3.0], 64, [1.5]).batch)


def test_drawn_gradients_give_back_what_they_were_drawn_from() -> None:
    draw, true = np.random.default_rng(0), np.full(50, 0.2)  # |G|^2 = 2
    norms = {
        batch: [
            float(np.sum((true + draw.normal(0, 1, 50) / np.sqrt(batch)) ** 2)) for _ in range(4000)
        ]
        for batch in (4, 64)
    }
    found = noise_scale(4, norms[4], 64, norms[64])
    assert found.gradient == pytest.approx(2.0, rel=0.05)
    assert found.noise == pytest.approx(50.0, rel=0.05)


@pytest.mark.parametrize(
    ("small", "norms", "large"), [(8, [3.0], 8), (8, [], 64), (8, [30.0], 64), (0, [3.0], 64)]
)
def test_what_gives_none_is_refused(small: float, norms: list[float], large: float) -> None:
    with pytest.raises(DataError):
        noise_scale(small, norms, large, [1.5] * len(norms))
