"""The gradient's noise scale: the batch beyond which more of it teaches little more.

McCandlish et al. 2018, arXiv:1812.06162, appendix A.1: the squared norm of a gradient over B
samples is |G|^2 + S / B, so two batches of different sizes give both parts.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trainrig.errors import DataError


@dataclass(frozen=True)
class NoiseScale:
    """Estimates, in the unit of the samples that the batches were counted in."""

    gradient: float  # |G|^2, of the true gradient
    noise: float  # S, the variance of one sample's gradient summed over parameters

    @property
    def batch(self) -> float:
        """S / |G|^2, with which training takes twice the fewest steps and twice the samples."""
        return self.noise / self.gradient


def noise_scale(
    small: float, small_norms: Sequence[float], large: float, large_norms: Sequence[float]
) -> NoiseScale:
    """From squared norms of gradients over `small` and over `large` samples, pair by pair.

    Each part is averaged over all pairs before their ratio is taken: the mean of ratios is biased.
    Raises DataError where batches do not differ, or noise hides the gradient.
    """
    if not 0 < small < large or len(small_norms) != len(large_norms) or not small_norms:
        raise DataError(
            f"a noise scale needs pairs of squared norms at two batches, the second larger; found "
            f"{len(small_norms)} at {small:g} and {len(large_norms)} at {large:g}"
        )
    of_small, of_large = float(np.mean(small_norms)), float(np.mean(large_norms))
    gradient = (large * of_large - small * of_small) / (large - small)
    noise = (of_small - of_large) / (1 / small - 1 / large)
    if gradient <= 0:
        raise DataError(
            f"noise hides the gradient: {len(small_norms)} pairs at {small:g} and {large:g} "
            "samples are too few; give more, or a larger second batch"
        )
    return NoiseScale(gradient, noise)
