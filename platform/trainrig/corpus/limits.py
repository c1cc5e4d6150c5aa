"""Limits on one column of signals or scores, fixed or at a percentile of the corpus, as pure data.

The same object decides about documents, is drawn in histograms and is described to readers. A
percentile limit keeps the best share of the documents. Scores are rounded, so that equal texts get
equal scores on every machine.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.array_types import Bools, Float64s

LANGUAGE = "language"  # the column that `languages` refers to
LANGUAGE_SCORE = "language_score"
LANGUAGE_SHARE = "language_share"
PAGE_KIND = "page_kind"  # the column that `page_kinds` refers to

Columns = Mapping[str, NDArray[Any]]


def mark_kinds(columns: Columns, page_kinds: tuple[str, ...]) -> Bools:
    """Mark the documents from pages of these kinds."""
    return np.isin(columns[PAGE_KIND], page_kinds)


@dataclass(frozen=True)
class Limit:
    """Bound that keeps documents whose `signal` is from `least` to `most`, both included."""

    rule: str  # name for reports, such as "word_count"
    signal: str  # name of the column
    least: float | None = None
    most: float | None = None
    languages: tuple[str, ...] | None = None  # languages that the bound applies to; None: all
    except_languages: tuple[str, ...] = ()  # languages that it does not apply to
    page_kinds: tuple[str, ...] | None = None  # kinds of page that it applies to; None: all

    def mark_broken(self, columns: Columns) -> Bools:
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
        if self.page_kinds is not None:
            broken &= mark_kinds(columns, self.page_kinds)
        return broken


@dataclass(frozen=True)
class Among:
    """Bound that keeps documents whose `signal` is one of `values`."""

    rule: str
    signal: str
    values: tuple[str, ...]
    page_kinds: tuple[str, ...] | None = None  # kinds of page that it applies to; None: all

    def mark_broken(self, columns: Columns) -> Bools:
        """Mark the documents that break the bound."""
        broken = ~np.isin(columns[self.signal], self.values)
        if self.page_kinds is not None:
            broken &= mark_kinds(columns, self.page_kinds)
        return broken


ALL_LANGUAGES = ""  # key of the threshold for all languages without their own


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
    # Kinds of page that the bound applies to, of which it keeps the share; None: all
    page_kinds: tuple[str, ...] | None = None

    def resolve(self, columns: Columns) -> dict[str, float]:
        """Return the threshold by language; documents of equal value are kept or dropped together.

        The result is empty if no document has a value.
        """
        values = columns[self.signal].astype(np.float64)
        if self.page_kinds is not None:
            values = np.where(mark_kinds(columns, self.page_kinds), values, np.nan)
        if not self.by_language:
            return _find_threshold(values, self.share, self.highest, ALL_LANGUAGES)
        thresholds: dict[str, float] = {}
        for language in np.unique(columns[LANGUAGE]):
            own = values[columns[LANGUAGE] == language]
            thresholds |= _find_threshold(own, self.share, self.highest, str(language))
        return thresholds

    def bind(self, thresholds: Mapping[str, float]) -> "PercentileThreshold":
        """Return a copy of this bound with its thresholds."""
        return replace(self, thresholds=thresholds)

    def mark_broken(self, columns: Columns) -> Bools:
        """Mark the documents beyond the threshold; NaN breaks no bound.

        Raises ValueError if the thresholds are not bound yet.
        """
        if self.thresholds is None:
            raise ValueError(f"{self.rule}: the thresholds are not bound; call `bind` first")
        values = columns[self.signal]
        edge = np.full(len(values), self.thresholds.get(ALL_LANGUAGES, np.nan))
        if self.by_language:
            languages, which = np.unique(columns[LANGUAGE], return_inverse=True)
            own = [self.thresholds.get(str(language), np.nan) for language in languages]
            edge = np.array([*own, np.nan])[which] if len(values) else edge
        beyond = values < edge if self.highest else values > edge
        if self.page_kinds is not None:
            beyond &= mark_kinds(columns, self.page_kinds)
        return np.asarray(beyond, bool)


def _find_threshold(values: Float64s, share: float, highest: bool, key: str) -> dict[str, float]:
    known = np.sort(values[~np.isnan(values)])
    if not len(known):
        return {}
    stay = min(len(known), max(1, round(share * len(known))))
    return {key: float(known[-stay] if highest else known[stay - 1])}


Scores = Float64s


def quantise_scores(scores: Scores) -> Scores:
    """Round `scores` to steps of 1/10000, so that thresholds do not depend on rounding errors."""
    return np.round(scores, 4)
