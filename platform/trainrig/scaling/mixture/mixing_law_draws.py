"""Mixing laws with the uncertainty of their fit, by a residual bootstrap.

The law of each target is fitted once. Then residuals of whole runs are drawn with replacement and
added to the fitted losses, and the law is fitted to these losses again. A run's residuals of all
targets are drawn together, so that the draws keep their correlation.
"""

from dataclasses import dataclass

import numpy as np

from trainrig.scaling.mixture.mixture_regression import MeanLaw, compute_expected, descend
from trainrig.scaling.mixture.mixture_runs import Array

REFITS = 200  # laws refitted to drawn residuals; a 95% interval then has five laws beyond each end


@dataclass(frozen=True, eq=False)
class DrawnLaws:
    """Mixing laws of the mean loss, and the same laws refitted to drawn residuals."""

    law: MeanLaw
    refitted: Array  # [D, T, 1 + S] least loss and steepness of each target, by draw
    noise: float  # standard deviation of one run's mean loss around the law, in nats per token

    @classmethod
    def fit(cls, shares: Array, losses: Array) -> "DrawnLaws":
        """Return the laws of `losses` [R, T] at `shares` [R, S], deterministically."""
        law = MeanLaw.fit(shares, losses)
        fitted = np.stack([target.expect(shares) for target in law.laws], axis=1)
        runs, sources = shares.shape
        # a law has a constant for each source and the least loss
        freedom = max(1, runs - sources - 1)
        residuals = (losses - fitted) * np.sqrt(runs / freedom)
        drawn_runs = np.random.default_rng(0).integers(0, runs, (REFITS, runs))
        drawn = (fitted + residuals[drawn_runs]).transpose(0, 2, 1)  # [D, T, R]
        constants = np.array([[target.least, *target.steepness] for target in law.laws])
        starts = np.tile(constants, (REFITS, 1))
        refitted = descend(starts, shares, drawn.reshape(-1, runs))
        noise = float(np.sqrt(np.mean(residuals.mean(axis=1) ** 2)))
        return cls(law, refitted.reshape(REFITS, *constants.shape), noise)

    def expect(self, shares: Array) -> Array:
        """Return the expected mean losses, [Q]."""
        return self.law.expect(shares)

    def predict(self, shares: Array) -> tuple[Array, Array]:
        """Return the expected mean losses and their standard deviations, both [Q].

        The deviations leave out the noise of a single run.
        """
        expected = self.expect(shares)
        deviations = np.sqrt(np.mean((self._expect_by_draw(shares) - expected) ** 2, axis=0))
        return expected, deviations

    def draw(self, shares: Array, count: int, generator: np.random.Generator) -> Array:
        """Return mean losses [P, Q] under `count` laws drawn from the refitted ones."""
        by_draw = self._expect_by_draw(shares)
        return by_draw[generator.integers(0, len(by_draw), count)]

    def _expect_by_draw(self, shares: Array) -> Array:
        """Return the mean losses [D, Q] that the refitted laws expect."""
        return np.stack([compute_expected(laws, shares).mean(axis=0) for laws in self.refitted])
