"""Draws of mixtures around the shares of sources; the module needs neither scipy nor pyarrow."""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
# Range of the Dirichlet distribution's total concentration: from nearly one source alone to nearly
# the average run.
CONCENTRATION = (1.0, 100.0)
# decimals of a weight; batches are mixed to 1/100,000, and no fit is more precise than this
DECIMALS = 4


def count_needed_runs(sources: int) -> int:
    """Return the fewest runs of a regression: twice the number of constants of a mixing law."""
    return 2 * (sources + 1)


def draw_mixtures(
    centre: Array,
    count: int,
    generator: np.random.Generator,
    concentration: tuple[float, float] = CONCENTRATION,
) -> Array:
    """Return `count` Dirichlet mixtures around `centre`, [count, S].

    Some of them are close to `centre`, others consist of few sources. The total concentration is
    drawn from the range `concentration`.
    """
    low, high = np.log(concentration)
    strength = np.exp(generator.uniform(low, high, count))
    gammas = generator.standard_gamma(strength[:, None] * np.maximum(centre, 1e-6))
    gammas += np.finfo(np.float64).tiny  # avoids division by 0, because all gamma draws may be 0
    return np.asarray(gammas / gammas.sum(axis=1, keepdims=True))


def round_shares(shares: Array) -> Array:
    """Return `shares` [S], rounded; the largest one takes the remainder, so that they sum to 1."""
    rounded = shares.round(DECIMALS)
    rounded[rounded.argmax()] += 1 - rounded.sum()
    return np.asarray(rounded.round(DECIMALS))


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
