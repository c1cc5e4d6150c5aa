"""Mixing laws with the uncertainty of their fit, by a residual bootstrap.

The law of each target is fitted once. Then residuals of whole runs are drawn with replacement and
added to the fitted losses, and the law is fitted to these losses again. A run's residuals of all
targets are drawn together, so that the draws keep their correlation.
"""

from dataclasses import dataclass

import numpy as np

from trainrig.scaling.mixture.mixture_regression import MeanLaw, MixingLaw
from trainrig.scaling.mixture.mixture_runs import Array

REFITS = 200  # laws refitted to drawn residuals; a 95% interval then has five laws beyond each end


@dataclass(frozen=True, eq=False)
class DrawnLaws:
    """Mixing laws of the mean loss, and the same laws refitted to drawn residuals."""

    law: MeanLaw
    refitted: tuple[MeanLaw, ...]
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
        generator = np.random.default_rng(0)
        refitted = []
        for _ in range(REFITS):
            drawn = fitted + residuals[generator.integers(0, runs, runs)]
            refitted.append(
                MeanLaw(
                    tuple(
                        MixingLaw.refit(target, shares, drawn[:, column])
                        for column, target in enumerate(law.laws)
                    )
                )
            )
        return cls(law, tuple(refitted), float(np.sqrt(np.mean(residuals.mean(axis=1) ** 2))))

    def expect(self, shares: Array) -> Array:
        """Return the expected mean losses, [Q]."""
        return self.law.expect(shares)

    def predict(self, shares: Array) -> tuple[Array, Array]:
        """Return the expected mean losses and their standard deviations, both [Q].

        The deviations leave out the noise of a single run.
        """
        under_draws = np.stack([law.expect(shares) for law in self.refitted])
        expected = self.expect(shares)
        return expected, np.sqrt(np.mean((under_draws - expected) ** 2, axis=0))

    def draw(self, shares: Array, count: int, generator: np.random.Generator) -> Array:
        """Return mean losses [P, Q] under `count` laws drawn from the refitted ones."""
        under_draws = np.stack([law.expect(shares) for law in self.refitted])
        return under_draws[generator.integers(0, len(under_draws), count)]
