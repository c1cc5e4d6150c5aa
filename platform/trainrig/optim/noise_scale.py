"""The gradient noise scale: the batch size at which averaging more of it begins not to pay.

McCandlish et al. 2018 (arXiv:1812.06162, appendix A.1): the squared norm of a gradient of B targets
is, on average, that of the true gradient plus the trace of the noise's covariance over B. Two batch
sizes give both; the noise scale is the trace over the squared norm. The small batches are the parts
of the global batch whose gradients are there before they are added up: no pass is made for it.
"""

from collections import deque
from dataclasses import dataclass

RECENT = 50  # measurements that a noise scale is the mean of: one alone is mostly noise


@dataclass(frozen=True)
class NoiseEstimate:
    """What two batch sizes tell. Either may be negative by chance; their means are not biased."""

    gradient_squared: float  # of the true gradient's norm
    trace: float  # of the covariance of one target's gradient


def estimate_noise(
    small_squared: float, small: float, big_squared: float, big: float
) -> NoiseEstimate:
    """From the mean squared norms of gradients of `small` and of `big` targets each."""
    if not 0 < small < big:
        raise ValueError(f"{small} and {big}: a small and a larger batch are needed")
    gradient_squared = (big * big_squared - small * small_squared) / (big - small)
    trace = (small_squared - big_squared) / (1 / small - 1 / big)
    return NoiseEstimate(gradient_squared, trace)


class RunningNoiseScale:
    """The noise scale of the newest measurements; numerator and denominator are averaged apart."""

    def __init__(self) -> None:
        self._recent: deque[NoiseEstimate] = deque(maxlen=RECENT)

    def add(self, estimate: NoiseEstimate) -> None:
        """One more measurement."""
        self._recent.append(estimate)

    def estimate(self) -> float | None:
        """Targets; None while the gradient cannot be told from its noise."""
        gradient = sum(each.gradient_squared for each in self._recent)
        trace = sum(each.trace for each in self._recent)
        return trace / gradient if self._recent and gradient > 0 and trace > 0 else None
