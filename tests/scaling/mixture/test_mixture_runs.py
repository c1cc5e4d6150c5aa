"""Weighted targets of runs on mixtures, and the noise of one run."""

import numpy as np
import pytest

from trainrig.scaling.mixture.mixture_draws import count_needed_runs
from trainrig.scaling.mixture.mixture_regression import MeanLaw, MeanProcess
from trainrig.scaling.mixture.mixture_runs import MixtureRuns


def make_runs(noise: float = 0.0, count: int = 60) -> MixtureRuns:
    generator = np.random.default_rng(0)
    shares = generator.dirichlet(np.ones(3), count)
    losses = np.stack([3 - 0.5 * np.log(shares[:, i] + 0.05) for i in (0, 1)], axis=1)
    losses += generator.normal(0, noise, losses.shape)
    return MixtureRuns(("web", "code", "books"), ("web", "code"), shares, losses)


def test_the_mean_of_weighed_losses_is_the_weighted_mean():
    runs = make_runs()
    weighed = runs.weigh_targets({"code": 0.25, "web": 0.75})
    by_hand = 0.75 * runs.losses[:, 0] + 0.25 * runs.losses[:, 1]
    assert weighed.losses.mean(axis=1) == pytest.approx(by_hand)
    equal = runs.weigh_targets({"web": 0.5, "code": 0.5})
    assert equal.losses == pytest.approx(runs.losses)


@pytest.mark.parametrize("regression", [MeanProcess, MeanLaw])
def test_a_weighed_regression_is_the_weighted_mean_of_those_of_the_targets(regression):
    runs = make_runs(0.01)
    weighed = runs.weigh_targets({"web": 0.9, "code": 0.1})
    alone = [regression.fit(runs.shares, runs.losses[:, [i]]).expect(runs.shares) for i in (0, 1)]
    found = regression.fit(weighed.shares, weighed.losses).expect(runs.shares)
    assert found == pytest.approx(0.9 * alone[0] + 0.1 * alone[1], abs=1e-3)


def test_the_noise_of_a_mean_loss_is_that_of_its_targets_together():
    apart = make_runs(0.05, 200)
    # errors of two targets that are independent: the mean's error is smaller by the root of 2
    found = MeanProcess.fit(apart.shares, apart.losses).noise
    assert found == pytest.approx(0.05 / np.sqrt(2), rel=0.2)
    (alone,) = MeanProcess.fit(apart.shares, apart.losses[:, [0]]).processes
    one = MeanProcess.fit(apart.shares, apart.losses[:, [0]])
    assert one.noise == pytest.approx(np.sqrt(alone.noise) * alone.spread, rel=1e-6)


def test_a_regression_needs_twice_the_constants_of_a_mixing_law():
    assert [count_needed_runs(sources) for sources in (2, 3, 17)] == [6, 8, 36]
