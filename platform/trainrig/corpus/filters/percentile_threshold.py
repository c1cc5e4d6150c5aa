"""A threshold set by a percentile of the corpus itself: the best share of the documents is kept."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.limits import LANGUAGE, Columns

ALL = ""  # key of the threshold for all languages without their own


@dataclass(frozen=True)
class PercentileThreshold:
    """Bound that keeps the `share` of a source's documents with the highest or lowest values.

    The threshold is known only after all documents are measured: `resolve` computes it, and only
    the copy that `bind` returns can mark documents.
    """

    rule: str
    signal: str
    share: float  # share of documents to keep, from 0 to 1
    highest: bool = True
    by_language: bool = False  # True if the share is of each language, as in CCNet
    # threshold by language; ALL: for languages without their own
    thresholds: Mapping[str, float] | None = None

    def resolve(self, columns: Columns) -> dict[str, float]:
        """Return the threshold by language; documents of equal value are kept or dropped together.

        The result is empty if no document has a value.
        """
        values = columns[self.signal].astype(np.float64)
        if not self.by_language:
            return _find_threshold(values, self.share, self.highest, ALL)
        thresholds: dict[str, float] = {}
        for language in np.unique(columns[LANGUAGE]):
            own = values[columns[LANGUAGE] == language]
            thresholds |= _find_threshold(own, self.share, self.highest, str(language))
        return thresholds

    def bind(self, thresholds: Mapping[str, float]) -> "PercentileThreshold":
        """Return a copy of this bound with its thresholds."""
        return PercentileThreshold(
            self.rule, self.signal, self.share, self.highest, self.by_language, thresholds
        )

    def mark_broken(self, columns: Columns) -> NDArray[np.bool_]:
        """Mark the documents beyond the threshold; NaN breaks no bound.

        Raises ValueError if the thresholds are not bound yet.
        """
        if self.thresholds is None:
            raise ValueError(f"{self.rule}: the thresholds are not bound; call `bind` first")
        values = columns[self.signal]
        edge = np.full(len(values), self.thresholds.get(ALL, np.nan))
        if self.by_language:
            languages, which = np.unique(columns[LANGUAGE], return_inverse=True)
            own = [self.thresholds.get(str(language), np.nan) for language in languages]
            edge = np.array([*own, np.nan])[which] if len(values) else edge
        beyond = values < edge if self.highest else values > edge
        return np.asarray(beyond, bool)


def _find_threshold(
    values: NDArray[np.float64], share: float, highest: bool, key: str
) -> dict[str, float]:
    known = np.sort(values[~np.isnan(values)])
    if not len(known):
        return {}
    stay = min(len(known), max(1, round(share * len(known))))
    return {key: float(known[-stay] if highest else known[stay - 1])}
