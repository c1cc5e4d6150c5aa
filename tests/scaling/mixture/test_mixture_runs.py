"""DoReMi's update, against independently computed values."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.doremi import DoReMi, compute_excess

from trainrig.errors import DataError

WEIGHTS = (0.25, 0.25, 0.5)


@pytest.mark.parametrize(
    ("smoothing", "expected"),
    [
        (1e-4, (0.29601238, 0.21930000, 0.48468762)),
        (1e-3, (0.29604597, 0.21940264, 0.48455139)),
    ],
)
def test_a_step_gives_the_known_weights(smoothing, expected):
    found = DoReMi(smoothing=smoothing).step(WEIGHTS, (0.3, 0.0, 0.1))
    assert found == pytest.approx(expected, abs=1e-8)


def test_a_domain_that_the_proxy_knows_better_counts_as_no_excess():
    rule = DoReMi()
    assert (
        rule.step(WEIGHTS, (0.3, -2.0, 0.1)).tolist() == rule.step(WEIGHTS, (0.3, 0, 0.1)).tolist()
    )


def test_the_result_is_the_mean_of_the_path_that_begins_even():
    rule = DoReMi()
    excesses = [(0.3, 0.0), (0.1, 0.2)]
    first = rule.step((0.5, 0.5), excesses[0])
    second = rule.step(first, excesses[1])
    assert rule.compute_path(excesses).tolist() == [first.tolist(), second.tolist()]
    assert rule.compute_weights(excesses) == pytest.approx((first + second) / 2)


@given(st.lists(st.floats(0, 1e4), min_size=2, max_size=6))
def test_weights_sum_to_one_and_none_falls_below_its_even_part(excess):
    found = DoReMi().step(np.full(len(excess), 1 / len(excess)), excess)
    assert found.sum() == pytest.approx(1)
    assert found.min() >= 1e-3 / len(excess) * (1 - 1e-9)


def test_excess_is_clipped_token_by_token():
    found = compute_excess({"web": [2.0, 1.0]}, {"web": [1.0, 3.0]})
    assert found == {"web": 0.5}


def test_losses_of_different_tokens_are_refused():
    with pytest.raises(DataError, match=r"'web'.*2 losses.*proxy and 1 of"):
        compute_excess({"web": [2.0, 1.0]}, {"web": [1.0]})
    with pytest.raises(DataError, match="not a finite number"):
        DoReMi().step((0.5, 0.5), (float("nan"), 0))
