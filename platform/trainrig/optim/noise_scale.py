"""The gradient noise scale: the batch size beyond which larger batches bring little.

McCandlish et al. 2018 (arXiv:1812.06162, appendix A.1): the expected squared norm of a gradient of
B targets is that of the true gradient plus the trace of the noise's covariance over B. Two batch
sizes determine both. The noise scale is the trace over the squared norm. The small batches are the
parts of the global batch whose gradients exist before they are added up, so no extra pass is
needed.
"""

from collections import deque
from dataclasses import dataclass

RECENT = 50  # number of measurements to average: a single one is mostly noise


@dataclass(frozen=True)
class NoiseEstimate:
    """Estimates from two batch sizes; unbiased, but a single one may be negative by chance."""

    gradient_squared: float  # squared norm of the true gradient
    trace: float  # trace of the covariance of one target's gradient


def estimate_noise(
    small_squared: float, small: float, big_squared: float, big: float
) -> NoiseEstimate:
    """Return the estimates from mean squared gradient norms at two batch sizes.

    `small` and `big` are numbers of targets.
    """
    if not 0 < small < big:
        raise ValueError(
            f"the noise estimate needs a small and a larger batch, but these have {small} and "
            f"{big} targets"
        )
    gradient_squared = (big * big_squared - small * small_squared) / (big - small)
    trace = (small_squared - big_squared) / (1 / small - 1 / big)
    return NoiseEstimate(gradient_squared, trace)


class RunningNoiseScale:
    """Noise scale over the latest measurements: the mean trace over the mean squared norm."""

    def __init__(self) -> None:
        self._recent: deque[NoiseEstimate] = deque(maxlen=RECENT)

    def add(self, estimate: NoiseEstimate) -> None:
        """Add a measurement."""
        self._recent.append(estimate)

    def estimate(self) -> float | None:
        """Return the noise scale in targets; None while noise hides the gradient."""
        gradient = sum(measurement.gradient_squared for measurement in self._recent)
        trace = sum(measurement.trace for measurement in self._recent)
        return trace / gradient if self._recent and gradient > 0 and trace > 0 else None
