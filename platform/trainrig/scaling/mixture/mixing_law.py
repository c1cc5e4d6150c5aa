"""Data mixing law L(r) = c + k exp(sum_j t_j r_j) (Ye et al. 2024, arXiv:2403.16952, eq. 6).

Shares sum to 1, so k is not an independent constant: k exp(t.r) = exp((t + log k).r). The law is
fitted without k, and `steepness` holds t + log k.

Shapes: R runs, Q queried mixtures, S sources.
"""

from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares

from trainrig.scaling.mixture.runs import Array

STARTS = 8  # number of starts of the optimiser
AGREE = 1e-6  # largest relative difference between sums of squares of the same minimum


@dataclass(frozen=True, eq=False)
class MixingLaw:
    """Mixing law fitted to runs, with losses in nats per token."""

    least: float  # constant c, the loss that no mixture removes
    steepness: Array  # [S] t + log k
    starts_that_agree: float  # share of the starts that reached the least sum of squares

    @classmethod
    def fit(cls, shares: Array, losses: Array) -> "MixingLaw":
        """Return the law of least squares, the best of STARTS starts, deterministically."""
        generator = np.random.default_rng(0)
        ends = []
        for least in losses.min() * np.linspace(0.1, 0.95, STARTS):
            linear = np.linalg.lstsq(shares, np.log(losses - least), rcond=None)[0]
            start = np.concatenate([[least], linear + generator.normal(0, 0.1, len(linear))])
            ends.append(_descend(start, shares, losses))
        costs = np.array([cost for cost, _ in ends])
        constants = ends[int(costs.argmin())][1]
        agree = costs <= costs.min() * (1 + AGREE) + 1e-12
        return cls(float(constants[0]), constants[1:], float(agree.mean()))

    def expect(self, shares: Array) -> Array:
        """Return the expected losses, [Q]."""
        return np.asarray(self.least + np.exp(shares @ self.steepness))


def _descend(start: Array, shares: Array, losses: Array) -> tuple[float, Array]:
    ones = np.ones((len(shares), 1))
    found = least_squares(
        lambda x: x[0] + np.exp(shares @ x[1:]) - losses,
        start,
        jac=lambda x: np.hstack([ones, np.exp(shares @ x[1:])[:, None] * shares]),
        bounds=([0.0] + [-np.inf] * shares.shape[1], np.inf),
        xtol=1e-12,
        ftol=1e-12,
        gtol=1e-12,
    )
    return float(found.cost), np.asarray(found.x, dtype=np.float64)
