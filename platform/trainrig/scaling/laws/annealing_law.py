"""Law of the loss along a training run, under the learning rates of its steps.

    L(s) = L0 + A S1(s)^-alpha - C S2(s)

of Tissue et al. 2024 (arXiv:2408.11029). S1 is the sum of the rates so far: how far the run has
come. S2 is the annealing so far: each fall of the rate lowers the loss, at first little and with
the steps after it up to a limit. Both count rates as shares of `peak`, so that S1 is in steps at
the peak. The first rise of the rate, the warm-up, counts in S1 alone, as in the paper.

Shapes: T steps.
"""

import numpy as np
from numpy.typing import ArrayLike

from trainrig.config import Field
from trainrig.scaling.laws.law_forms import Array, Constants, NotNegative, Positive


def sum_rates(rates: ArrayLike) -> Array:
    """Return S1 [T]: the sum of the rates up to and including each step."""
    return np.cumsum(np.asarray(rates, dtype=np.float64))


def sum_annealing(rates: ArrayLike, memory: float) -> Array:
    """Return S2 [T] = sum_{i<=s} sum_{k<=i} (r_{k-1} - r_k) memory^(i-k) at each step s.

    A fall of the rate by f has lowered the loss by C f after its own step, and by C f / (1 -
    memory) in the end. A later rise of the rate undoes that in the same way.
    """
    from scipy.signal import lfilter  # imported here because it is slow to import

    falls = count_falls(rates)
    return np.asarray(np.cumsum(lfilter([1.0], [1.0, -memory], falls)), dtype=np.float64)


def count_falls(rates: ArrayLike) -> Array:
    """Return by how much the rate fell before each step [T], without the rise of the warm-up.

    Rises count as negative falls once the rate has fallen. The value at a step depends on the rates
    up to that step alone.
    """
    given = np.asarray(rates, dtype=np.float64)
    falls = np.zeros_like(given)
    falls[1:] = -np.diff(given)
    falls[np.cumsum(falls > 0) == 0] = 0.0
    return falls


class Annealing(Constants):
    """L = L0 + A S1^-alpha - C S2 (Tissue et al. 2024, arXiv:2408.11029, equation 1)."""

    L0: NotNegative  # loss, in nats per token, after infinitely many steps at the peak rate
    A: Positive
    alpha: Positive
    C: NotNegative  # loss that a step saves for each share of the peak by which the rate has fallen
    memory: float = Field(ge=0, lt=1)  # share of a fall's effect that is left one step later
    peak: Positive  # learning rate that counts as 1

    def compute_losses(self, rates: ArrayLike) -> Array:
        """Return the loss [T] after each step of a run whose steps have the `rates` [T].

        It is infinite as long as all rates are 0.
        """
        shares = np.asarray(rates, dtype=np.float64) / self.peak
        with np.errstate(divide="ignore"):
            power = self.A * sum_rates(shares) ** -self.alpha
        return np.asarray(self.L0 + power - self.C * sum_annealing(shares, self.memory))
