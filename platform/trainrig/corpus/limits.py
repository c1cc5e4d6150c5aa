"""What a rule is: a bound on one column of signals. Pure data, so that the same bound decides, is
drawn into a histogram, and is told to a reader."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

LANGUAGE = "language"  # the column that `languages` speaks of
LANGUAGE_SCORE = "language_score"

Columns = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Limit:
    """Keeps documents whose `signal` is at least `least` and at most `most`, both included."""

    rule: str  # "word_count": what a reader is told
    signal: str  # the column
    least: float | None = None
    most: float | None = None
    languages: tuple[str, ...] | None = None  # the only ones that it speaks of; None: all
    except_languages: tuple[str, ...] = ()  # ones that it does not speak of

    def mark_broken(self, columns: Columns) -> NDArray[np.bool_]:
        """Which documents break the rule. A value that is no number (NaN) breaks no bound."""
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
    """Keeps documents whose `signal` is one of `values`."""

    rule: str
    signal: str
    values: tuple[str, ...]

    def mark_broken(self, columns: Columns) -> NDArray[np.bool_]:
        """Which documents break the rule."""
        return ~np.isin(columns[self.signal], self.values)
