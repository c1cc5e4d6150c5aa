"""Trends of a metric over a run: means of equal parts, and whether they differ by more than noise.

The noise is estimated from the differences between neighbouring values, so that a trend within a
part does not count as noise (von Neumann et al. 1941, doi:10.1214/aoms/1177731746). Noise that
lasts over several values is underestimated.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Standard errors by which two parts must differ. A normal variable exceeds 4 once in 30,000 times,
# and a run is looked at hundreds of times.
SURE = 4.0

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Trend:
    """Means of a metric over the parts of a run, from the first to the newest."""

    means: Numbers
    variances: Numbers  # variance of each mean

    @classmethod
    def of(cls, values: Numbers, size: int) -> "Trend":
        """Return the trend of `values`, cut into parts of `size` that end with the newest value."""
        parts = values[len(values) % size :].reshape(-1, size)
        variances = (np.diff(parts) ** 2).sum(1) / (2 * (size - 1))
        return cls(parts.mean(1), variances / size)

    @property
    def first(self) -> float:
        """Mean over the first part."""
        return float(self.means[0])

    @property
    def last(self) -> float:
        """Mean over the newest part."""
        return float(self.means[-1])

    @property
    def best(self) -> int:
        """Number of the part before the newest that has the highest mean."""
        return int(self.means[:-1].argmax())

    def compute_noise(self, part: int) -> float:
        """Return the standard error of the difference between the newest part and `part`."""
        return math.sqrt(self.variances[part] + self.variances[-1])

    def is_above(self, since: int = 0) -> bool:
        """Return whether the mean has risen from part `since` to the newest by more than noise."""
        change = self.last - self.means[since]
        return bool(change > 0 and change > SURE * self.compute_noise(since))

    def is_below_best(self, least: float) -> bool:
        """Return whether the mean has fallen from the best part by more than noise.

        `least`: share of the best value by which it must have fallen. The best of several parts is
        high by chance: the highest of n normal variables is below sqrt(2 ln n) on average.
        """
        best = self.means[self.best]
        sure = SURE + math.sqrt(math.log(len(self.means)))
        change = best - self.last
        return bool(change > max(sure * self.compute_noise(self.best), least * abs(best)))
