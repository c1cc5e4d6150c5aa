import numpy as np
import pytest
from support.fixed_laws import difference_twice

from trainrig.scaling.regression.minimise import (
    CurveValue,
    Differenced,
    LogSumExp,
    MinimiseSettings,
    minimise,
)


def rows(seed=0):
    rng = np.random.default_rng(seed)
    return LogSumExp(rng.normal(size=(3, 20, 4))), rng.normal(size=(2, 4)), rng.normal(size=(2, 20))


def test_exact_derivatives_are_those_of_differences():
    curve, theta, coefficients = rows()
    exact = curve(theta)
    differenced = Differenced(lambda t: curve(t).value)(theta)
    assert exact.slope == pytest.approx(differenced.slope, abs=1e-8)
    twice = difference_twice(lambda t: curve(t).value, theta, coefficients)
    assert exact.bend(coefficients) == pytest.approx(twice, abs=1e-4)


def test_each_problem_ends_where_it_would_alone():
    curve, start, _ = rows()
    targets = np.random.default_rng(1).normal(size=20)
    weights = np.random.default_rng(2).integers(0, 4, size=(2, 20)).astype(float)
    together = minimise(curve, start, targets, weights, (0.1,), MinimiseSettings())
    for k in range(2):
        alone = minimise(
            curve, start[k : k + 1], targets, weights[k : k + 1], (0.1,), MinimiseSettings(batch=1)
        )
        assert alone.theta[0] == pytest.approx(together.theta[k], rel=1e-6)


def test_a_coordinate_that_changes_no_row_stays_and_the_others_converge():
    curve, start, _ = rows()

    def idle(theta):
        point = curve(theta[:, :4])
        count = theta.shape[1]

        def bend(coefficients):
            bent = np.zeros((len(theta), count, count))
            bent[:, :4, :4] = point.bend(coefficients)
            return bent

        return CurveValue(point.value, np.pad(point.slope, ((0, 0), (0, 0), (0, 1))), bend)

    targets = curve(start[:1]).value[0]
    weights = np.ones((1, 20))
    found = minimise(
        idle, np.array([[*start[0] + 0.1, 7.0]]), targets, weights, (np.inf,), MinimiseSettings()
    )
    assert found.converged.all()
    assert found.theta[0] == pytest.approx([*start[0], 7.0], abs=1e-6)
