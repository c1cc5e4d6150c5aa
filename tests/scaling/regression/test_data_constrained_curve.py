"""Closed-form first and second derivatives of the data-constrained law, against differences."""

import numpy as np
import pytest
from support.fixed_laws import FixedBaseCurve, difference_twice

from trainrig.scaling.laws.law_forms import Array, DataConstrained, Parametric
from trainrig.scaling.regression.data_constrained import DataConstrainedCurve
from trainrig.scaling.regression.minimise import CurveFunction, Differenced

LARGEST = 1e6
N = np.geomspace(1e7, 1e10, 12)
D = np.geomspace(1e12, 1e9, 12)
UNIQUE = D / np.array([1, 2, 5, 10, 30, 60] * 2)
MIDDLE = (20.0, 24.0)
BASE = Parametric(E=1.9, A=520.0, B=1500.0, alpha=0.35, beta=0.37)


def compute_law(theta: Array) -> Array:
    a, b, e, alpha, beta, r_d, r_n = np.moveaxis(theta[:, None], -1, 0)
    base = Parametric.model_construct(
        E=np.exp(e),
        A=np.exp(a + alpha * MIDDLE[0]),
        B=np.exp(b + beta * MIDDLE[1]),
        alpha=alpha,
        beta=beta,
    )
    form = DataConstrained.model_construct(base=base, r_d=np.exp(r_d), r_n=np.exp(r_n))
    return np.asarray(np.log(form.compute_loss(N, D, UNIQUE)))


def draw_thetas() -> Array:
    """Return parameters under which only some sizes exceed the support of the unique tokens."""
    start = [
        np.log(BASE.A) - BASE.alpha * MIDDLE[0],
        np.log(BASE.B) - BASE.beta * MIDDLE[1],
        np.log(BASE.E),
        BASE.alpha,
        BASE.beta,
        np.log(15.0),
        np.log(5.0),
    ]
    return np.array(start) + np.random.default_rng(0).normal(0, 0.05, (6, 7))


@pytest.mark.parametrize("base", [None, BASE])
def test_slopes_and_bends_are_those_of_differences(base: Parametric | None) -> None:
    logs = np.log(N), np.log(D), np.log(UNIQUE)
    if base is None:
        theta = draw_thetas()
        curve: CurveFunction = DataConstrainedCurve(logs, MIDDLE, LARGEST)
        law = compute_law
    else:
        first = np.array([np.log(base.A), np.log(base.B), np.log(base.E), base.alpha, base.beta])
        theta = draw_thetas()[:, 5:]
        curve = FixedBaseCurve(logs, base)

        def law(theta: Array) -> Array:
            shifted = first - np.array([base.alpha * MIDDLE[0], base.beta * MIDDLE[1], 0, 0, 0])
            return compute_law(np.concatenate([np.tile(shifted, (len(theta), 1)), theta], axis=1))

    found = curve(theta)
    expected = Differenced(law)(theta)
    assert found.value == pytest.approx(expected.value, rel=1e-12)
    assert found.slope == pytest.approx(expected.slope, abs=1e-7)
    weights = np.random.default_rng(1).normal(size=found.value.shape)
    bent = difference_twice(law, theta, weights)
    assert found.bend(weights) == pytest.approx(bent, abs=1e-3, rel=1e-4)


def test_a_fading_at_its_largest_moves_nothing() -> None:
    theta = draw_thetas()
    theta[:, 5:] = np.log(LARGEST) + 1
    found = DataConstrainedCurve((np.log(N), np.log(D), np.log(UNIQUE)), MIDDLE, LARGEST)(theta)
    assert (found.slope[..., 5:] == 0).all()
    assert (found.bend(np.ones_like(found.value))[:, 5:, 5:] == 0).all()
