"""Proposed mixtures: near the true best, within limits, and reproducible."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainrig.errors import ConfigError
from trainrig.scaling.mixture.mixture_draws import draw_mixtures, limit_shares
from trainrig.scaling.mixture.mixture_proposal import propose
from trainrig.scaling.mixture.mixture_regression import MeanProcess
from trainrig.scaling.mixture.mixture_settings import MixtureSearch

SOURCES = ("web", "code", "books")
QUICK = MixtureSearch(candidates=10_000, finalists=100, draws=40)


def compute_two_targets(shares: np.ndarray) -> np.ndarray:
    """Return two losses: web lowers the first, code the second, and books neither."""
    web, code, _ = shares.T
    return np.stack([3 - 0.5 * np.log(web + 0.01), 3 - 0.5 * np.log(code + 0.01)], axis=1)


@pytest.fixture(scope="module")
def fitted() -> tuple[MeanProcess, np.ndarray]:
    generator = np.random.default_rng(0)
    shares = generator.dirichlet(np.ones(3), 60)
    losses = compute_two_targets(shares) + generator.normal(0, 0.01, (60, 2))
    return MeanProcess.fit(shares, losses), shares


def test_the_proposal_is_near_the_best_mixture_there_is_and_its_gain_is_sure(fitted):
    process, shares = fitted
    found = propose(process, shares, QUICK, QUICK.compute_limits(SOURCES))
    web, code, books = found.shares
    assert books < 0.06
    assert web == pytest.approx(code, abs=0.06)
    assert found.shares.sum() == pytest.approx(1)
    assert (found.low <= found.high).all()
    truth = compute_two_targets(np.stack([found.shares, found.average_shares])).mean(axis=1)
    assert found.loss == pytest.approx(truth[0], abs=0.02)
    low, high = found.gain_interval
    assert 0 < low <= truth[1] - truth[0] <= high


def test_the_same_runs_give_the_same_proposal(fitted):
    process, shares = fitted
    first, again = (
        propose(process, shares, QUICK, QUICK.compute_limits(SOURCES)) for _ in range(2)
    )
    assert first.shares.tobytes() == again.shares.tobytes()
    assert first.gain_interval == again.gain_interval


def test_no_source_gets_more_than_it_may_have(fitted):
    process, shares = fitted
    search = QUICK.model_copy(update={"at_most": {"web": 0.2}})
    found = propose(process, shares, search, search.compute_limits(SOURCES))
    assert found.shares[0] <= 0.2 + 1e-12
    assert found.shares[1] > 0.6
    assert found.high[0] <= 0.2 + 1e-12


@given(
    st.lists(st.floats(0.01, 1), min_size=3, max_size=3),
    st.lists(st.floats(0.4, 1), min_size=3, max_size=3),
)
def test_limited_shares_sum_to_one_within_their_limits(shares, limits):
    mixture = np.array([shares]) / sum(shares)
    cut = limit_shares(mixture, np.array(limits))
    assert cut.sum() == pytest.approx(1)
    assert (cut <= np.array(limits) + 1e-12).all()


def test_a_mixture_within_its_limits_stays_as_it_is():
    mixture = np.array([[0.5, 0.3, 0.2]])
    assert limit_shares(mixture, np.array([0.6, 1, 1])).tolist() == mixture.tolist()


def test_drawn_mixtures_lie_around_the_centre():
    found = draw_mixtures(np.array([0.7, 0.2, 0.1]), 20_000, np.random.default_rng(0))
    assert found.sum(axis=1) == pytest.approx(np.ones(20_000))
    assert found.mean(axis=0) == pytest.approx([0.7, 0.2, 0.1], abs=0.01)
    assert (found.max(axis=1) > 0.99).any() and (found.max(axis=1) < 0.7).any()


@pytest.mark.parametrize(
    ("at_most", "message"),
    [
        ({"wbe": 0.5}, "no source 'wbe'; did you mean 'web'?"),
        ({"web": 1.5}, "web = 1.5; choose a share from 0 to 1"),
        ({"web": 0.1, "code": 0.1, "books": 0.1}, "sum to 0.3, and shares must sum to 1"),
    ],
)
def test_limits_that_cannot_be_are_refused(at_most, message):
    with pytest.raises(ConfigError, match=message.replace("?", r"\?")):
        MixtureSearch(at_most=at_most).compute_limits(SOURCES)


@given(st.integers(1, 98), st.integers(1, 98))
def test_limits_whose_decimals_sum_to_one_are_accepted(web, code):
    books = 100 - web - code
    if books > 0:
        limits = {"web": web / 100, "code": code / 100, "books": books / 100}
        MixtureSearch(at_most=limits).compute_limits(SOURCES)
        limits["books"] -= 0.001
        with pytest.raises(ConfigError, match=r"sum to 0\.999"):
            MixtureSearch(at_most=limits).compute_limits(SOURCES)


def test_limits_that_a_sum_of_floats_calls_less_than_one_are_accepted():
    limits = {"web": 0.06, "code": 0.57, "books": 0.37}
    assert np.array(list(limits.values())).sum() < 1
    MixtureSearch(at_most=limits).compute_limits(SOURCES)
