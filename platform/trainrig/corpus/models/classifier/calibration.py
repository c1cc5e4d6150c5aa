"""Calibration of a classifier's probabilities on held-out texts, and measures of its quality."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

BINS = 10
THRESHOLDS = tuple(n / 10 for n in range(1, 10))
_STEPS = 100
# regularisation of the slope; keeps it finite where a threshold separates the classes
_PRIOR = 1e-3

Reals = NDArray[np.float64]
Labels = NDArray[np.bool_]


class Sigmoid(NamedTuple):
    """Maps a raw score to a probability: 1 / (1 + exp(-(slope · score + shift)))."""

    slope: float
    shift: float

    def __call__(self, raw: Reals) -> Reals:
        """Return the probability of each raw score."""
        return 1 / (1 + np.exp(-np.clip(self.slope * raw + self.shift, -500, 500)))


def fit_sigmoid(raw: Reals, labels: Labels) -> Sigmoid:
    """Fit the sigmoid that maximises the likelihood of `labels` (Platt 1999), by Newton's method.

    Target values are (n + 1) / (n + 2) instead of 1, and similarly for 0, as in Platt. Otherwise
    scores that separate the classes perfectly would give probabilities of 0 and 1.
    """
    wanted = int(labels.sum())
    others = int((~labels).sum())
    targets = np.where(labels, (wanted + 1) / (wanted + 2), 1 / (others + 2))
    scale = float(np.abs(raw).max()) or 1.0
    columns = np.stack([raw / scale, np.ones_like(raw)])
    at = np.zeros(2)
    loss = np.inf
    for _ in range(_STEPS):
        chance = Sigmoid(*at)(columns[0])
        gradient = columns @ (chance - targets) + _PRIOR * at
        curve = (columns * (chance * (1 - chance))) @ columns.T + _PRIOR * np.eye(2)
        step = np.linalg.solve(curve, gradient)
        size = 1.0
        while size > 1e-6 and (now := _compute_loss(at - size * step, columns, targets)) > loss:
            size /= 2
        at = at - size * step
        before = loss
        loss = now
        if before - loss < 1e-12 * abs(loss):
            break
    return Sigmoid(float(at[0]) / scale, float(at[1]))


def _compute_loss(at: Reals, columns: Reals, targets: Reals) -> float:
    logits = at @ columns
    likely = targets * np.logaddexp(0, -logits) + (1 - targets) * np.logaddexp(0, logits)
    return float(likely.sum() + _PRIOR * (at @ at) / 2)


def compute_area(scores: Reals, labels: Labels) -> float:
    """Compute the area under the ROC curve.

    It is the share of pairs in which the wanted text scores above the other; ties count half.
    """
    wanted = int(labels.sum())
    others = int((~labels).sum())
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[place]
    return float((ranks[labels].sum() - wanted * (wanted + 1) / 2) / (wanted * others))


class Bin(NamedTuple):
    """Texts of similar probability; a calibrated model has `predicted` near `observed`."""

    predicted: float  # mean probability
    observed: float  # share of the texts that are wanted
    texts: int


def compute_reliability(scores: Reals, labels: Labels) -> list[Bin]:
    """Compute the reliability curve over those tenths of the probability range that have texts."""
    place = np.minimum((scores * BINS).astype(np.int64), BINS - 1)
    return [
        Bin(
            round(float(scores[place == n].mean()), 6),
            round(float(labels[place == n].mean()), 6),
            int(np.count_nonzero(place == n)),
        )
        for n in range(BINS)
        if (place == n).any()
    ]


class AtThreshold(NamedTuple):
    """Precision and recall of keeping texts with a probability of at least `least`."""

    least: float
    precision: float  # share of the kept texts that are wanted; 1 if none is kept
    recall: float  # share of the wanted texts that are kept
    kept: float  # share of all texts that are kept


def measure_at_thresholds(scores: Reals, labels: Labels) -> list[AtThreshold]:
    """Measure precision and recall at thresholds from 0.1 to 0.9."""
    found = []
    for least in THRESHOLDS:
        kept = scores >= least
        right = int((kept & labels).sum())
        found.append(
            AtThreshold(
                least,
                round(right / max(1, int(kept.sum())), 6) if kept.any() else 1.0,
                round(right / int(labels.sum()), 6),
                round(float(kept.mean()), 6),
            )
        )
    return found
