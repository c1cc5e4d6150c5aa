"""Proposal of a mixture for the large model, with its uncertainty.

As in RegMix (Liu et al. 2024, arXiv:2407.01492, section 3.3), very many mixtures are drawn, their
losses are predicted, and the best are averaged. In addition, functions are drawn from the
uncertainty of the regression, and the best mixtures under each of them are averaged, which shows
how far the answer moves.

Shapes: Q mixtures, S sources, P draws.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from trainrig.config import Field, Settings, suggest_choice
from trainrig.errors import ConfigError
from trainrig.scaling.mixture.mean_of_targets import MeanProcess
from trainrig.scaling.mixture.runs import Array

# Range of the Dirichlet distribution's total concentration: from nearly one source alone to nearly
# the average run.
CONCENTRATION = (1.0, 100.0)
CHUNK = 10_000  # mixtures predicted at a time, which takes 40 MB against 512 runs
LEVEL = 0.95  # probability that an interval covers
DRAWS_OF_TWO = 4000  # number of functions drawn at two mixtures, where draws are cheap


class MixtureSearch(Settings):
    """Settings of the search for a mixture."""

    candidates: int = Field(50_000, ge=10_000)  # number of mixtures drawn
    best: int = Field(100, ge=1)  # number of best mixtures whose average is proposed, 100 in RegMix
    finalists: int = Field(500, ge=100)  # candidates that may be best under a drawn function
    draws: int = Field(200, ge=40)  # functions drawn for the intervals
    # upper limit of a source's share, for sources with too few tokens
    at_most: Mapping[str, float] = Field({})
    seed: int = Field(0, ge=0)  # random seed of the draws

    def compute_limits(self, sources: tuple[str, ...]) -> Array:
        """Return the upper limit of each source's share, [S].

        Raises ConfigError if a source does not exist, or if the limits cannot be met.
        """
        for source, share in self.at_most.items():
            if source not in sources:
                raise ConfigError(f"at most: no source '{source}'{suggest_choice(source, sources)}")
            if not 0 <= share <= 1:
                raise ConfigError(f"at most: {source} = {share:g}; choose a share from 0 to 1")
        limits = np.array([self.at_most.get(source, 1.0) for source in sources])
        if limits.sum() < 1:
            raise ConfigError(
                f"at most: the limits of all sources sum to {limits.sum():.4g}, and shares must "
                "sum to 1; raise a limit"
            )
        return limits


@dataclass(frozen=True, eq=False)
class Proposal:
    """Proposed mixture, and the average mixture of the runs for comparison.

    Losses are in nats per token, the mean over the targets. Intervals hold the share LEVEL of the
    draws.
    """

    shares: Array  # [S]
    low: Array  # [S]
    high: Array  # [S]
    loss: float
    loss_interval: tuple[float, float]
    average_shares: Array  # [S]
    average_loss: float
    gain: float  # nats per token below the loss of the average mixture
    gain_interval: tuple[float, float]


def propose(process: MeanProcess, runs: Array, search: MixtureSearch, limits: Array) -> Proposal:
    """Propose the average of the best mixtures, with intervals.

    `search.candidates` mixtures are drawn around the average of `runs` [R, S] and kept within
    `limits` [S].
    """
    generator = np.random.default_rng(search.seed)
    average = runs.mean(axis=0)
    mixtures = limit_shares(draw_mixtures(average, search.candidates, generator), limits)
    expected = np.concatenate(
        [
            process.expect(mixtures[begin : begin + CHUNK])
            for begin in range(0, len(mixtures), CHUNK)
        ]
    )
    shares = mixtures[np.argpartition(expected, search.best)[: search.best]].mean(axis=0)
    finalists = _select_finalists(process, mixtures, expected, search.finalists)
    moved = _average_best_by_draw(process, finalists, search, generator)
    low, high = _compute_interval(moved)
    both = np.stack([shares, average])
    losses = process.expect(both)
    under_draws = process.draw(both, DRAWS_OF_TWO, generator)
    gains = under_draws[:, 1] - under_draws[:, 0]
    return Proposal(
        shares=shares,
        low=low,
        high=high,
        loss=float(losses[0]),
        loss_interval=_compute_ends(under_draws[:, 0]),
        average_shares=average,
        average_loss=float(losses[1]),
        gain=float(losses[1] - losses[0]),
        gain_interval=_compute_ends(gains),
    )


def _compute_interval(values: Array) -> tuple[Array, Array]:
    low, high = np.quantile(values, ((1 - LEVEL) / 2, (1 + LEVEL) / 2), axis=0)
    return low, high


def _compute_ends(values: Array) -> tuple[float, float]:
    low, high = _compute_interval(values)
    return float(low), float(high)


def draw_mixtures(centre: Array, count: int, generator: np.random.Generator) -> Array:
    """Return `count` Dirichlet mixtures around `centre`, [count, S].

    Some of them are close to `centre`, others consist of few sources.
    """
    low, high = np.log(CONCENTRATION)
    strength = np.exp(generator.uniform(low, high, count))
    gammas = generator.standard_gamma(strength[:, None] * np.maximum(centre, 1e-6))
    gammas += np.finfo(np.float64).tiny  # avoids division by 0, because all gamma draws may be 0
    return np.asarray(gammas / gammas.sum(axis=1, keepdims=True))


def limit_shares(mixtures: Array, limits: Array) -> Array:
    """Return `mixtures` with no share above its limit.

    The excess of a share goes to the other sources, in proportion to their shares.
    """
    cut = mixtures
    for _ in range(len(limits)):  # each round brings one more source to its limit, or ends the loop
        over = cut >= limits
        if not (cut > limits).any():
            break
        remainder = 1 - np.where(over, limits, 0).sum(axis=1, keepdims=True)
        free = np.where(over, 0, np.maximum(cut, 1e-12))
        total = free.sum(axis=1, keepdims=True)
        cut = np.where(over, limits, free / np.where(total > 0, total, 1) * remainder)
    return np.asarray(cut)


def _select_finalists(process: MeanProcess, mixtures: Array, expected: Array, count: int) -> Array:
    """Return the `count` mixtures that are lowest at the low end of their error bars.

    They are chosen from the 4 x `count` mixtures of lowest expected loss, because error bars are
    costly.
    """
    few = np.argsort(expected, kind="stable")[: 4 * count]
    losses, deviations = process.predict(mixtures[few])
    return np.asarray(mixtures[few[np.argsort(losses - 2 * deviations, kind="stable")[:count]]])


def _average_best_by_draw(
    process: MeanProcess, finalists: Array, search: MixtureSearch, generator: np.random.Generator
) -> Array:
    """Return the average of the best finalists [P, S] under each drawn function."""
    functions = process.draw(finalists, search.draws, generator)
    best = min(search.best, len(finalists) // 10)
    chosen = np.argpartition(functions, best, axis=1)[:, :best]
    return np.asarray(finalists[chosen].mean(axis=1))
