"""Intervals of a confirmation, against scipy's test of two samples."""

import numpy as np
import pytest
from scipy import stats

from trainrig.scaling.laws.law import Interval
from trainrig.scaling.mixture.confirmation_record import Confirmation, ConfirmedMixture


def confirm(name: str, *losses: float, interval: tuple[float, float] = (2.9, 3.1)):
    low, high = interval
    return ConfirmedMixture(
        name=name,
        weights={"web": 1.0},
        predicted=3.0,
        interval=Interval(low=low, high=high),
        losses=losses,
    )


def test_the_interval_of_two_mixtures_is_that_of_students_test():
    proposed, natural = (3.0, 3.02, 2.99), (3.05, 3.06, 3.01)
    built = Confirmation.build([confirm("proposed", *proposed), confirm("natural", *natural)], 0.95)
    (difference,) = built.differences
    expected = stats.ttest_ind(natural, proposed).confidence_interval(0.95)
    assert difference.gain == pytest.approx(np.mean(natural) - np.mean(proposed))
    assert (difference.interval.low, difference.interval.high) == pytest.approx(
        (expected.low, expected.high)
    )


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (
            (3.5, 3.51),
            "the proposal is better than natural, whose loss minus the proposal's is 0.5000",
        ),
        ((3.0, 3.02), "the proposal is not better beyond the noise of seeds than natural"),
        (
            (2.5, 2.51),
            "the proposal is worse than natural, whose loss minus the proposal's is -0.5000",
        ),
    ],
)
def test_the_text_claims_no_more_than_the_interval_shows(other, said):
    lines = Confirmation.build(
        [confirm("proposed", 3.0, 3.01), confirm("natural", *other)], 0.95
    ).describe()
    assert any(line.startswith(said) for line in lines), lines
    assert lines[0] == "proposed: predicted 3.0000 [2.9000, 3.1000], measured 3.0050 nats per token"
    assert lines[1].endswith("outside the interval") == (np.mean(other) > 3.1 or other[0] < 2.9)


@pytest.mark.parametrize(
    ("other", "interval", "warned"),
    [
        ((3.5, 3.51), (2.9, 3.1), []),
        ((3.0, 3.02), (2.9, 3.1), ["does not show a gain"]),
        ((2.5, 2.51), (2.9, 3.1), ["worse than natural"]),
        ((3.5, 3.51), (2.8, 2.9), ["is not in its predicted interval [2.8000, 2.9000]"]),
    ],
)
def test_a_proposal_that_the_runs_do_not_confirm_has_a_warning(other, interval, warned):
    proposed = confirm("proposed", 3.0, 3.01, interval=interval)
    built = Confirmation.build([proposed, confirm("natural", *other)], 0.95)
    warnings = list(built.find_warnings())
    assert len(warnings) == len(warned)
    assert all(words in warning for words, warning in zip(warned, warnings, strict=True))
