"""Errors of scores, compared with formulas and simulation, and cases without an error."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from trainrig.evaluate.score_statistics import (
    calibrate,
    estimate,
    estimate_paired_difference,
    estimate_shuffled_band,
)
from trainrig.evaluate.scorecards import score_task


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=30))
def test_a_mean_has_the_standard_error_of_a_mean(values):
    found = estimate(values)
    assert found.value == pytest.approx(np.mean(values), abs=1e-12)
    assert found.error == pytest.approx(stats.sem(values), abs=1e-12)


def test_one_row_has_no_error():
    assert estimate([1.0]).error is None and estimate([1.0]).interval is None
    assert estimate([1.0, 0.0], groups=["a", "a"]).error is None


def test_scores_of_zero_and_one_still_have_intervals():
    rows = [{"scores": {"exact_match": 0.0}}] * 60
    found = score_task(rows, few_shot=0, chat=False).headline
    assert (found.low, found.high) == (0.0, pytest.approx(stats.beta.ppf(0.975, 1, 60)))
    rows = [{"scores": {"exact_match": 1.0}}] * 60
    assert score_task(rows, 0, False).headline.low == pytest.approx(stats.beta.ppf(0.025, 60, 1))


def test_rows_of_one_group_count_as_one():
    values = [1.0, 0.0, 0.0, 1.0, 1.0]
    grouped = estimate(
        [v for v in values for _ in range(4)], groups=[f"{n}" for n in range(5) for _ in range(4)]
    )
    assert grouped.error == pytest.approx(estimate(values).error) and grouped.groups == 5
    assert estimate(values, groups=[None] * 5) == estimate(values)


def test_a_clustered_interval_covers_the_truth_at_its_level():
    dice = np.random.default_rng(0)
    held = plain = 0
    for _ in range(400):
        passages = dice.normal(0.5, 0.2, 40)
        values = np.repeat(passages, 5) + dice.normal(0, 0.1, 200)
        groups = [str(n) for n in np.repeat(np.arange(40), 5)]
        low, high = estimate(values, groups=groups).interval
        held += low <= 0.5 <= high
        low, high = estimate(values).interval
        plain += low <= 0.5 <= high
    assert 0.92 <= held / 400 <= 0.98 and plain / 400 < 0.75


def test_a_ratio_is_of_the_sums():
    found = estimate([10.0, 30.0, 5.0], [5.0, 10.0, 5.0])
    assert found.value == 45 / 20
    off = np.array([10 - 2.25 * 5, 30 - 22.5, 5 - 11.25])
    assert found.error == pytest.approx(math.sqrt((off**2).sum() * 3 / 2) / 20)


def test_a_difference_is_taken_row_by_row():
    a = [1, 0, 1, 0] * 25
    b = [1, 1, 1, 0] * 25
    found = estimate_paired_difference(a, b)
    assert found.difference.value == 0.25 and (found.a_only, found.b_only) == (0, 25)
    assert not found.within_noise
    assert found.difference.error < estimate(a).error  # errors on rows that both get right cancel
    assert (
        estimate_paired_difference(a, a).within_noise
        and estimate_paired_difference([0], [1]).within_noise
    )


@pytest.mark.slow
def test_random_answers_are_in_the_band_of_shuffled_labels():
    dice = np.random.default_rng(1)
    inside = 0
    for _ in range(40):
        choices = dice.choice([2, 4], 200)
        gold, chosen = (dice.integers(0, choices) for _ in range(2))
        low, high = estimate_shuffled_band(chosen, gold, choices)
        inside += low <= float((gold == chosen).mean()) <= high
    assert inside >= 38
    gold = np.arange(200) % 4
    low, high = estimate_shuffled_band(gold, gold, np.full(200, 4))
    assert high < 0.5  # a model that knows the answers is far outside
    assert estimate_shuffled_band([0] * 10, [0] * 10, [2] * 10) == (
        1.0,
        1.0,
    )  # all labels are equal


def test_confidence_equal_to_accuracy_is_calibrated():
    rows = [{"confidence": 0.75, "scores": {"acc": float(n % 4 > 0)}} for n in range(40)]
    found = calibrate(rows, "acc")
    assert found.error == pytest.approx(0) and found.bins[0].rows == 40
    over = [{"confidence": 0.95, "scores": {"acc": 0.0}}, {"confidence": 1.0, "scores": {"acc": 1}}]
    assert calibrate(over, "acc").error == pytest.approx(0.475)
    assert calibrate([{"scores": {"acc": 1}}], "acc") is None


def test_perplexities_are_of_all_text_together():
    rows = [
        {"scores": {"bits_per_byte": 0}, "log_likelihood": -n, "tokens": t, "bytes": b, "words": w}
        for n, t, b, w in [(10.0, 5, 20, 4), (30.0, 10, 50, 9)]
    ]
    found = score_task(rows, few_shot=0, chat=False)
    assert found.headline.value == pytest.approx(40 / math.log(2) / 70)
    assert found.metrics["perplexity"].value == pytest.approx(math.exp(40 / 15))
    assert found.metrics["word_perplexity"].value == pytest.approx(math.exp(40 / 13))
    assert not found.higher_is_better and found.chance is None
