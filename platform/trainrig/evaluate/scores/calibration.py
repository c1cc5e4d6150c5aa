"""Whether a model is as often right as it is sure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

BINS = 10


@dataclass(frozen=True)
class ConfidenceBin:
    """Rows whose answer the model gave a like share of its belief."""

    rows: int
    confidence: float  # mean
    right: float  # share


@dataclass(frozen=True)
class Calibration:
    """Confidence against how often it was right."""

    bins: tuple[ConfidenceBin, ...]  # those that hold rows, the least sure first

    @property
    def error(self) -> float:
        """The expected calibration error: the mean distance of the two (arXiv:1706.04599)."""
        rows = sum(each.rows for each in self.bins)
        return sum(each.rows * abs(each.confidence - each.right) for each in self.bins) / rows


def calibrate(rows: Sequence[Mapping[str, Any]], metric: str) -> Calibration | None:
    """By tenths of confidence; None for rows of a kind that has none."""
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
        sure, right = (sum(each) / count for each in zip(*pairs, strict=True))
        found.append(ConfidenceBin(count, sure, right))
    return Calibration(tuple(found))
