"""Rounding that all scores share."""

import numpy as np
from numpy.typing import NDArray

Scores = NDArray[np.float64]


def quantise_scores(scores: Scores) -> Scores:
    """Round `scores` to steps of 1/10000, so that thresholds do not depend on rounding errors."""
    return np.round(scores, 4)
