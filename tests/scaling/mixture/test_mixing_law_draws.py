"""Bootstrap of mixing laws: the noise, and intervals that contain the true loss."""

import numpy as np
import pytest
from scipy.optimize import least_squares

from trainrig.scaling.mixture import mixing_law_draws
from trainrig.scaling.mixture.mixing_law_draws import DrawnLaws
from trainrig.scaling.mixture.mixture_proposal import propose
from trainrig.scaling.mixture.mixture_regression import MeanLaw, compute_expected, descend
from trainrig.scaling.mixture.mixture_settings import MixtureSearch

STEEPNESS = np.array([[-1.0, 0.5, 0.2], [0.4, -0.8, 0.3]])  # [T, S]
NOISE = 0.02


def compute_truth(shares: np.ndarray) -> np.ndarray:
    """Return the losses of two targets by laws with the least losses 2 and 1.5, [R, T]."""
    return np.array([2.0, 1.5]) + np.exp(shares @ STEEPNESS.T)


def draw_runs(seed: int, count: int = 40) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    shares = generator.dirichlet(np.ones(3), count)
    return shares, compute_truth(shares) + generator.normal(0, NOISE, (count, 2))


@pytest.fixture
def few_refits(monkeypatch):
    monkeypatch.setattr(mixing_law_draws, "REFITS", 40)


def test_expectation_deviation_and_noise_are_those_of_the_laws(few_refits):
    shares, losses = draw_runs(0)
    laws = DrawnLaws.fit(shares, losses)
    assert laws.expect(shares) == pytest.approx(MeanLaw.fit(shares, losses).expect(shares))
    assert laws.noise == pytest.approx(NOISE / np.sqrt(2), rel=0.3)
    drawn = laws.draw(shares[:5], 4_000, np.random.default_rng(0))
    expected, deviations = laws.predict(shares[:5])
    by_draws = np.sqrt(np.mean((drawn - expected) ** 2, axis=0))
    assert by_draws == pytest.approx(deviations, rel=0.1)


def test_the_same_runs_give_the_same_laws(few_refits):
    first, again = (DrawnLaws.fit(*draw_runs(1)) for _ in range(2))
    assert (first.refitted == again.refitted).all()


def fit_by_scipy(start: np.ndarray, shares: np.ndarray, losses: np.ndarray) -> float:
    """Return the least sum of squares that a trust region finds from `start`."""
    found = least_squares(
        lambda x: x[0] + np.exp(shares @ x[1:]) - losses,
        [max(start[0], 1e-9), *start[1:]],
        bounds=([0.0] + [-np.inf] * shares.shape[1], np.inf),
        **dict.fromkeys(("xtol", "ftol", "gtol"), 1e-12),
    )
    return 2 * found.cost


@pytest.mark.parametrize(("sources", "count"), [(3, 24), (5, 40), (5, 12)])
def test_laws_fitted_together_are_those_that_a_trust_region_finds_one_by_one(
    sources: int, count: int
) -> None:
    """Among laws of little curvature, some have the least loss at its bound, zero."""
    generator = np.random.default_rng(sources)
    shares = generator.dirichlet(np.ones(sources), count)
    steepness = generator.normal(0, 0.5, (8, sources))
    starts = np.column_stack([generator.uniform(0, 2, 8), steepness])
    noise = generator.normal(0, 0.03, (8, count))
    losses = generator.uniform(0, 2, (8, 1)) + np.exp(steepness @ shares.T) + noise
    found = descend(starts, shares, losses)
    costs = ((compute_expected(found, shares) - losses) ** 2).sum(axis=1)
    assert (found[:, 0] >= 0).all() and (found[:, 0] == 0).any()
    wanted = [fit_by_scipy(starts[row], shares, losses[row]) for row in range(8)]
    assert costs == pytest.approx(np.array(wanted), rel=1e-7)


def test_the_interval_of_a_share_contains_the_proposed_share(few_refits):
    """Laws are nearly certain that the third source should get nothing, which no draw quite is."""
    generator = np.random.default_rng(2)
    shares = generator.dirichlet((1.0, 1.0, 8.0), 40)
    losses = compute_truth(shares) + generator.normal(0, 1e-4, (40, 2))
    search = MixtureSearch(candidates=10_000, finalists=100, draws=40)
    found = propose(DrawnLaws.fit(shares, losses), shares, search, np.ones(3))
    assert (found.low <= found.shares).all() and (found.shares <= found.high).all()


@pytest.mark.slow
def test_two_deviations_contain_the_true_mean_loss_nearly_always(few_refits):
    at = np.array([[1 / 3, 1 / 3, 1 / 3], [0.8, 0.1, 0.1], [0.1, 0.1, 0.8]])
    truth = compute_truth(at).mean(axis=1)
    inside = []
    for seed in range(20):
        expected, deviations = DrawnLaws.fit(*draw_runs(seed)).predict(at)
        inside.append(np.abs(expected - truth) <= 2 * deviations)
    # 60 intervals of about 95%; fewer than 50 of them contain the truth in one case of 10,000
    assert np.sum(inside) >= 50
