"""What all scores have in common."""

import numpy as np
from numpy.typing import NDArray

Scores = NDArray[np.float64]


def quantise_scores(scores: Scores) -> Scores:
    """`scores` in steps of 1/10000: a threshold must not depend on a last bit."""
    return np.round(scores, 4)
