"""Calibration: a model's confidence compared with its accuracy."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

BINS = 10


@dataclass(frozen=True)
class ConfidenceBin:
    """Rows in one tenth of the confidence range."""

    rows: int
    confidence: float  # mean confidence
    right: float  # mean score: the share of right answers


@dataclass(frozen=True)
class Calibration:
    """Accuracy by confidence."""

    bins: tuple[ConfidenceBin, ...]  # non-empty bins, by rising confidence

    @property
    def error(self) -> float:
        """The expected calibration error, between 0 and 1 (arXiv:1706.04599).

        This is the mean over rows of the distance between confidence and accuracy of their bin.
        """
        rows = sum(entry.rows for entry in self.bins)
        return sum(entry.rows * abs(entry.confidence - entry.right) for entry in self.bins) / rows


def calibrate(rows: Sequence[Mapping[str, Any]], metric: str) -> Calibration | None:
    """Bin `rows` by tenths of confidence. Return None if the rows have no confidence."""
    if not rows or any("confidence" not in row for row in rows):
        return None
    binned: dict[int, list[tuple[float, float]]] = {}
    for row in rows:
        sure = float(row["confidence"])
        place = min(BINS - 1, int(sure * BINS))
        binned.setdefault(place, []).append((sure, float(row["scores"][metric])))
    found = []
    for _, pairs in sorted(binned.items()):
        count = len(pairs)
        sure, right = (sum(values) / count for values in zip(*pairs, strict=True))
        found.append(ConfidenceBin(count, sure, right))
    return Calibration(tuple(found))
