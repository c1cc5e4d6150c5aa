"""Predictions of several forms together: their median, their spread, and what larger runs teach."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainrig.scaling.laws.stacking import (
    PRIOR_RUNS,
    FormPrediction,
    Outcome,
    Spread,
    Stack,
    compute_weighted_median,
    learn_spread,
    measure_distance,
    stack_members,
)

VALUES = st.lists(st.tuples(st.integers(10, 50), st.integers(1, 9)), min_size=3, max_size=7)


@given(VALUES)
def test_a_weighted_median_lies_next_to_the_median_of_repeated_values(
    pairs: list[tuple[int, int]],
) -> None:
    """The twin repeats each value as often as its share says."""
    values = np.array([[float(value)] for value, _ in pairs])
    shares = np.array([float(share) for _, share in pairs])
    found = float(compute_weighted_median(values, shares)[0])
    repeated = np.sort(np.repeat(values[:, 0], shares.astype(int) * 2))
    middle = float(np.median(repeated))
    distinct = np.unique(values)
    at = int(np.searchsorted(distinct, middle))
    near = distinct[max(at - 1, 0) : at + 2]
    assert near.min() - 1e-9 <= found <= near.max() + 1e-9


@given(st.floats(1, 5), st.floats(1, 5), st.floats(0.05, 0.95))
def test_the_median_of_two_is_their_weighted_mean(
    first: float, second: float, share: float
) -> None:
    values = np.array([[first], [second]])
    found = compute_weighted_median(values, np.array([share, 1 - share]))
    assert found[0] == pytest.approx(share * first + (1 - share) * second)


def test_a_form_far_off_moves_a_median_less_than_a_mean() -> None:
    predicted = np.array([[2.0], [2.1], [0.5]])
    shares = np.array([0.45, 0.35, 0.2])
    assert compute_weighted_median(predicted, shares)[0] > 1.9 > shares @ predicted[:, 0]


def test_the_deviation_joins_draws_and_disagreement() -> None:
    draws = 2.0 * np.exp(0.03 * np.random.default_rng(0).normal(size=(4000, 1)))
    alone = stack_members([FormPrediction(1.0, np.array([2.0]), draws)])
    assert alone.deviation[0] == pytest.approx(0.03, rel=0.05)
    exact = np.full((30, 1), 2.0 * np.exp(0.1))
    both = stack_members(
        [FormPrediction(0.5, np.array([2.0]), draws), FormPrediction(0.5, exact[0], exact)]
    )
    # Half of the variance of the draws, and a distance of about .05 of each form from the middle.
    assert both.deviation[0] == pytest.approx(np.sqrt(0.03**2 / 2 + 0.05**2), rel=0.05)
    without = stack_members([FormPrediction(1.0, np.array([2.0]), np.empty((0, 1)))])
    assert without.deviation[0] == 0


def make_outcome(errors: list[float], deviation: float) -> Outcome:
    loss = 3.0 * np.exp(np.array(errors))
    predicted = np.full(len(errors), 3.0)
    stack = Stack(predicted, np.full(len(errors), deviation), predicted, predicted)
    return Outcome(stack, loss, 0.0, np.full(len(errors), 0.7))


def test_errors_on_larger_runs_scale_the_spread() -> None:
    as_expected = learn_spread(0.01, [make_outcome([0.02, -0.02], 0.02)], 2)
    assert as_expected.scale == pytest.approx(1.0)
    twice = learn_spread(0.01, [make_outcome([0.04, -0.04], 0.02)], 2)
    assert twice.scale == pytest.approx(np.sqrt((PRIOR_RUNS + 2 * 4) / (PRIOR_RUNS + 2)))
    assert twice.runs == 2 and twice.noise == 0.01 and twice.distance == pytest.approx(0.7)
    # A few small errors are no evidence that the draws expect too much.
    assert learn_spread(0.01, [make_outcome([0.002, -0.002], 0.02)], 2).scale == 1
    assert learn_spread(0.01, [make_outcome([0.04], np.inf)], 1) == Spread(noise=0.01)
    assert learn_spread(0.01, [], 0) == Spread(noise=0.01)


def test_an_interval_is_wider_where_fewer_runs_taught_it() -> None:
    few = Spread(noise=0.03, runs=1).compute_half_width(0.04, 0.0, 0.95)
    many = Spread(noise=0.03, runs=1000).compute_half_width(0.04, 0.0, 0.95)
    assert many == pytest.approx(1.96 * 0.05, rel=0.01)  # a normal distribution, 3-4-5
    assert few > 1.2 * many


@given(st.floats(1, 5), st.floats(0, 9), st.floats(0, 9))
def test_unexpected_errors_grow_with_the_distance_as_a_random_walk(
    scale: float, near: float, far: float
) -> None:
    spread = Spread(noise=0.03, scale=scale, distance=1.0, runs=9)
    near, far = sorted((near, far))
    first = spread.compute_half_width(0.04, near, 0.95)
    second = spread.compute_half_width(0.04, far, 0.95)
    assert first <= second * (1 + 1e-12)
    expected = Spread(noise=0.03, runs=9).compute_half_width(0.04, far, 0.95)
    excess = (second / expected) ** 2 - 1
    assert excess == pytest.approx((scale**2 - 1) * max(far, 1.0), abs=1e-9)


def test_the_distance_is_that_along_the_farthest_axis() -> None:
    parameters = np.array([1e9, 1e8, 2e8])
    tokens = np.array([1e9, 1e9, 8e10])
    found = measure_distance(parameters, tokens, (2e8, 2e10, 4e18))
    assert found == pytest.approx([np.log(5), 0, np.log(24)])
    # The compute of whole numbers does not fit into an integer of 64 bits.
    assert measure_distance(7 * 10**9, 2 * 10**11, (1.0, 1.0, 8.4e21)) > 0


def test_predictions_without_a_share_count_for_the_lowest_and_the_highest() -> None:
    draws = np.full((30, 1), 2.0)
    stack = stack_members(
        [FormPrediction(1.0, np.array([2.0]), draws)], [np.array([1.5]), np.array([np.nan])]
    )
    assert (stack.loss[0], stack.lowest[0], stack.highest[0]) == (2.0, 1.5, 2.0)
