"""Optimal designs against a Bayesian regression that is written out, and by their properties."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainrig.scaling.laws.law_forms import Parametric
from trainrig.scaling.regression.optimal_design import (
    FORM_ERROR,
    PRIOR_DEVIATIONS,
    SHARED_NOISE,
    CandidateTrial,
    TargetKnowledge,
    extend_design,
)

LAW = Parametric(E=1.8, A=480.0, B=2000.0, alpha=0.35, beta=0.37)
OTHER = Parametric(E=1.7, A=400.0, B=410.0, alpha=0.34, beta=0.28)
SIZE, TOKENS = 2.0**30, 2.0**34
NOISE = 0.004


def make_trial(size_halvings: int, token_halvings: list[int]) -> CandidateTrial:
    """Return a trial whose compute is the target's divided by powers of two."""
    tokens = sorted(TOKENS / 2**halvings for halvings in token_halvings)
    return CandidateTrial(SIZE / 2**size_halvings, tuple(tokens), 6e9 * sum(tokens))


def differentiate_log_loss(parameters: float, tokens: float) -> np.ndarray:
    """Return the derivatives of the log loss by ln E, ln a, ln b, alpha and beta, as differences.

    a and b are the terms at the target.
    """
    of_size = LAW.A * SIZE**-LAW.alpha
    of_tokens = LAW.B * TOKENS**-LAW.beta

    def compute(shift: np.ndarray) -> float:
        floor, size_term, token_term = np.exp(shift[:3]) * (LAW.E, of_size, of_tokens)
        size_term *= (parameters / SIZE) ** -(LAW.alpha + shift[3])
        token_term *= (tokens / TOKENS) ** -(LAW.beta + shift[4])
        return float(np.log(floor + size_term + token_term))

    steps = 1e-5 * np.eye(5)
    return np.array([(compute(step) - compute(-step)) / 2e-5 for step in steps])


def compute_dense_variance(trials: list[CandidateTrial]) -> float:
    """Return the variance of the target's log loss, given all runs at once."""
    runs = [(trial.parameters, d, n) for n, trial in enumerate(trials) for d in trial.tokens]
    slopes = np.array([differentiate_log_loss(n, d) for n, d, _ in runs])
    target = differentiate_log_loss(SIZE, TOKENS)
    prior = np.diag(np.square(PRIOR_DEVIATIONS))
    less = np.array([np.log(SIZE * TOKENS / (n * d)) for n, d, _ in runs])
    trial = np.array([place for *_, place in runs])
    noise = SHARED_NOISE * (trial[:, None] == trial) + (1 - SHARED_NOISE) * np.eye(len(runs))
    between = slopes @ prior @ slopes.T + NOISE**2 * noise
    between += FORM_ERROR**2 * np.minimum(less[:, None], less)
    across = slopes @ prior @ target
    return float(target @ prior @ target - across @ np.linalg.solve(between, across))


designs = st.lists(
    st.builds(
        make_trial,
        st.integers(1, 8),
        st.lists(st.integers(1, 9), min_size=1, max_size=4, unique=True),
    ),
    min_size=1,
    max_size=5,
)


@settings(max_examples=40, deadline=None)
@given(designs)
def test_the_variance_is_that_of_a_regression_on_all_runs_at_once(trials):
    knowledge = TargetKnowledge([LAW], SIZE, TOKENS, NOISE)
    for trial in trials:
        knowledge.add(trial)
    assert knowledge.variances[0] == pytest.approx(compute_dense_variance(trials), rel=1e-4)


@settings(max_examples=40, deadline=None)
@given(designs, designs)
def test_the_gain_of_a_trial_is_the_fall_of_the_mean_log_variance(before, after):
    knowledge = TargetKnowledge([LAW, OTHER], SIZE, TOKENS, NOISE)
    for trial in before:
        knowledge.add(trial)
    gain = knowledge.measure_gain(after[0])
    earlier = np.log(knowledge.variances).mean()
    knowledge.add(after[0])
    assert gain == pytest.approx(earlier - np.log(knowledge.variances).mean(), rel=1e-6, abs=1e-9)
    assert gain >= -1e-9


def test_repeats_of_a_small_run_do_not_replace_a_larger_one():
    small, large = make_trial(8, [8]), make_trial(2, [2])
    repeated = TargetKnowledge([LAW], SIZE, TOKENS, NOISE)
    for _ in range(1_000):
        repeated.add(small)
    assert repeated.measure_gain(large) > 10 * repeated.measure_gain(small)


def test_a_design_takes_the_best_trial_for_its_cost_and_new_sizes_first():
    candidates = [make_trial(size, [size, size + 1]) for size in (2, 3, 4, 5)]
    candidates += [make_trial(size, [2, 3]) for size in (2, 3, 4, 5)]
    start = TargetKnowledge([LAW, OTHER], SIZE, TOKENS, NOISE)
    rates = [start.measure_gain(trial) / trial.cost for trial in candidates]
    budget = 4 * max(trial.cost for trial in candidates)
    chosen = extend_design(start, candidates, budget, 1.0, 3, 12)
    assert chosen[0] == int(np.argmax(rates))
    assert len({candidates[place].parameters for place in chosen[:3]}) == 3
    assert sum(candidates[place].cost for place in chosen) <= budget
    assert len(chosen) <= 12


@pytest.mark.parametrize("share", [0.2, 0.5])
def test_no_trial_of_a_design_costs_more_than_its_share(share):
    candidates = [make_trial(size, [tokens]) for size in (3, 5, 7) for tokens in range(2, 9)]
    budget = 3 * max(trial.cost for trial in candidates)
    knowledge = TargetKnowledge([LAW], SIZE, TOKENS, NOISE)
    chosen = extend_design(knowledge, candidates, budget, share, 3, 12)
    assert chosen and max(candidates[place].cost for place in chosen) <= share * budget
