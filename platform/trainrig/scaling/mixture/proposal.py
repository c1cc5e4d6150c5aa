"""A mixture to train the large model on, and how sure it is.

As RegMix does (Liu et al. 2024, arXiv:2407.01492, section 3.3): draw very many mixtures, predict
their losses, average the best. What is more here: how far the answer moves when the regression is
as wrong as it says it may be. Functions are drawn from what the runs leave open; under each, the
best mixtures are averaged anew.

Shapes: Q mixtures, S sources, P draws.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from trainrig.config import Field, Settings, suggest_choice
from trainrig.errors import ConfigError
from trainrig.scaling.mixture.mean_of_targets import MeanProcess
from trainrig.scaling.mixture.runs import Array

# Of the Dirichlet distribution, in all: from nearly one source alone to nearly the average run.
CONCENTRATION = (1.0, 100.0)
CHUNK = 10_000  # mixtures predicted at a time: 40 MB against 512 runs
LEVEL = 0.95
DRAWS_OF_TWO = 4000  # functions at two mixtures cost next to nothing


class MixtureSearch(Settings):
    """How mixtures are looked for."""

    candidates: int = Field(50_000, ge=10_000)
    best: int = Field(100, ge=1)  # whose average is proposed; RegMix's number
    finalists: int = Field(500, ge=100)  # candidates that may be best under a drawn function
    draws: int = Field(200, ge=40)  # functions drawn for the intervals
    at_most: Mapping[str, float] = Field({})  # share by source, where its tokens would not last
    seed: int = Field(0, ge=0)

    def compute_limits(self, sources: tuple[str, ...]) -> Array:
        """[S] the most that each source may have. Raises ConfigError if that cannot be met."""
        for source, share in self.at_most.items():
            if source not in sources:
                raise ConfigError(f"at most: no source '{source}'{suggest_choice(source, sources)}")
            if not 0 <= share <= 1:
                raise ConfigError(f"at most: {source} = {share:g}; a share lies from 0 to 1")
        limits = np.array([self.at_most.get(source, 1.0) for source in sources])
        if limits.sum() < 1:
            raise ConfigError(
                f"at most: the limits of all sources sum to {limits.sum():.4g}, and shares to 1"
            )
        return limits


@dataclass(frozen=True, eq=False)
class Proposal:
    """The mixture proposed, and the average run's to compare it with.

    Losses in nats per token, of the mean over the targets. Ends of intervals hold LEVEL of the
    draws.
    """

    shares: Array  # [S]
    low: Array  # [S]
    high: Array  # [S]
    loss: float
    loss_interval: tuple[float, float]
    average_shares: Array  # [S]
    average_loss: float
    gain: float  # by which the proposal is better than the average
    gain_interval: tuple[float, float]


def propose(process: MeanProcess, runs: Array, search: MixtureSearch, limits: Array) -> Proposal:
    """The average of the best of `search.candidates` mixtures, drawn around those of `runs`."""
    generator = np.random.default_rng(search.seed)
    average = runs.mean(axis=0)
    mixtures = limit_shares(draw_mixtures(average, search.candidates, generator), limits)
    expected = np.concatenate(
        [process.expect(mixtures[at : at + CHUNK]) for at in range(0, len(mixtures), CHUNK)]
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
    """[count, S] Dirichlet mixtures around `centre`, some close to it, some of few sources."""
    low, high = np.log(CONCENTRATION)
    strength = np.exp(generator.uniform(low, high, count))
    gammas = generator.standard_gamma(strength[:, None] * np.maximum(centre, 1e-6))
    gammas += np.finfo(np.float64).tiny  # all shapes may be so small that each draw is 0
    return np.asarray(gammas / gammas.sum(axis=1, keepdims=True))


def limit_shares(mixtures: Array, limits: Array) -> Array:
    """`mixtures` with no share above its limit: what is cut goes to the others in proportion."""
    cut = mixtures
    for _ in range(len(limits)):  # each round fills one more source, or none is over its limit
        over = cut >= limits
        if not (cut > limits).any():
            break
        room = 1 - np.where(over, limits, 0).sum(axis=1, keepdims=True)
        free = np.where(over, 0, np.maximum(cut, 1e-12))
        total = free.sum(axis=1, keepdims=True)
        cut = np.where(over, limits, free / np.where(total > 0, total, 1) * room)
    return np.asarray(cut)


def _select_finalists(process: MeanProcess, mixtures: Array, expected: Array, count: int) -> Array:
    """Those lowest at the low end of their error bars, of four times as many expected lowest."""
    few = np.argsort(expected, kind="stable")[: 4 * count]
    losses, deviations = process.predict(mixtures[few])
    return np.asarray(mixtures[few[np.argsort(losses - 2 * deviations, kind="stable")[:count]]])


def _average_best_by_draw(
    process: MeanProcess, finalists: Array, search: MixtureSearch, generator: np.random.Generator
) -> Array:
    """[P, S] the average of the best finalists, under each function drawn."""
    functions = process.draw(finalists, search.draws, generator)
    best = min(search.best, len(finalists) // 10)
    chosen = np.argpartition(functions, best, axis=1)[:, :best]
    return np.asarray(finalists[chosen].mean(axis=1))
