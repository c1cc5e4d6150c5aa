"""Bounds on one column of signals, as pure data.

The same object decides about documents, is drawn in histograms and is described to readers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

LANGUAGE = "language"  # the column that `languages` refers to
LANGUAGE_SCORE = "language_score"

Columns = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Limit:
    """Bound that keeps documents whose `signal` is from `least` to `most`, both included."""

    rule: str  # name for reports, such as "word_count"
    signal: str  # name of the column
    least: float | None = None
    most: float | None = None
    languages: tuple[str, ...] | None = None  # languages that the bound applies to; None: all
    except_languages: tuple[str, ...] = ()  # languages that it does not apply to

    def mark_broken(self, columns: Columns) -> NDArray[np.bool_]:
        """Mark the documents that break the bound; NaN breaks no bound."""
        values = columns[self.signal]
        broken = np.zeros(len(values), bool)
        if self.least is not None:
            broken |= values < self.least
        if self.most is not None:
            broken |= values > self.most
        if self.languages is not None:
            broken &= np.isin(columns[LANGUAGE], self.languages)
        if self.except_languages:
            broken &= ~np.isin(columns[LANGUAGE], self.except_languages)
        return broken


@dataclass(frozen=True)
class Among:
    """Bound that keeps documents whose `signal` is one of `values`."""

    rule: str
    signal: str
    values: tuple[str, ...]

    def mark_broken(self, columns: Columns) -> NDArray[np.bool_]:
        """Mark the documents that break the bound."""
        return ~np.isin(columns[self.signal], self.values)
