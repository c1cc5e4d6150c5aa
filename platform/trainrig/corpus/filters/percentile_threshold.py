"""A bound that the corpus itself sets: the best share of the documents stays."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.limits import LANGUAGE, Columns

ALL = ""  # the language under which the value for all others stands


@dataclass(frozen=True)
class PercentileThreshold:
    """Keeps the `share` of a source's documents with the highest values, or the lowest.

    Where the cut falls is known once all documents are measured: `resolve` finds it, and only the
    bound that `bind` gives can decide.
    """

    rule: str
    signal: str
    share: float  # of 1
    highest: bool = True
    by_language: bool = False  # that share of each language, as CCNet does
    # value by language; ALL: of those without their own
    thresholds: Mapping[str, float] | None = None

    def resolve(self, columns: Columns) -> dict[str, float]:
        """The value at the edge of what stays; documents of equal value stay together.

        Of nothing at all, there is no value.
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
        """The same bound with its values."""
        return PercentileThreshold(
            self.rule, self.signal, self.share, self.highest, self.by_language, thresholds
        )

    def mark_broken(self, columns: Columns) -> NDArray[np.bool_]:
        """Which documents lie beyond the cut. A value that is no number (NaN) breaks no bound."""
        if self.thresholds is None:
            raise ValueError(f"{self.rule}: where its cut falls has not been found")
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
