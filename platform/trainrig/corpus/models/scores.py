"""Scores and the thresholds over them."""

import numpy as np
from numpy.typing import NDArray

from trainrig.errors import ConfigError

STEP = 1e-4  # a threshold must not depend on a last bit

Scores = NDArray[np.float64]


def quantised(scores: Scores) -> Scores:
    """`scores` in steps of 1/10000."""
    return np.round(scores, 4)


def least_for_share(scores: Scores, share: float) -> float:
    """The least score to keep so that about `share` of the documents stay: the highest ones.

    It is a score that is there. Documents that share it stay together, so a few more may be kept;
    those without a score (NaN) are not counted. Raises ConfigError if no share is between 0 and 1.
    """
    if not 0 < share <= 1:
        raise ConfigError(f"keep_share: {share}; a share lies above 0, and is at most 1")
    known = np.sort(scores[~np.isnan(scores)])
    if not len(known):
        raise ConfigError("keep_share: no document has a score to choose by")
    return float(known[len(known) - max(1, round(len(known) * share))])
