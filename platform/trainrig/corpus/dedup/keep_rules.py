"""Keep order: which of several similar documents is kept, whatever the order of the inputs.

A rule gives each document a *rank*; of two similar documents the one with the lower rank is kept.
Documents of equal rank are ordered by their ids, which do not depend on the input order. To add
a rule, add a class to this module and its name to `KeepRule`.

A rank has 64 bits: 16 for the source's position, and 48 for the comparison within a source.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from trainrig.config import Settings
from trainrig.corpus.array_types import Int64s, UInt8s, UInt64s

RANKS_BITS = 48
WORST: int = 2**RANKS_BITS - 1
# Bits of the source's number in a rank of `Earliest(by="crawl")`; the crawl's number is above them.
_SOURCE_BITS = 24
_SOURCES = 2**16


@dataclass(frozen=True)
class KeepFeatures:
    """Features of the documents of one source, by which keep rules rank them."""

    characters: Int64s
    digests: UInt8s  # [documents, 16] digests of the texts
    source: str
    source_number: int  # position in the run file
    columns: Mapping[str, NDArray[Any]]  # stored columns that the rule reads, by name

    def __len__(self) -> int:
        return len(self.characters)


class _KeepRule(Settings):
    """Base of the rules."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the stored columns that the rule reads."""
        return ()


class Longest(_KeepRule):
    """Keep the document with the longest text, in characters."""

    kind: Literal["Longest"] = "Longest"

    def rank_documents(self, documents: KeepFeatures) -> UInt64s:
        """Compute the rank of each document; the lowest is kept."""
        short_by = WORST - np.minimum(documents.characters, WORST)
        return np.asarray(short_by, np.uint64)


class ContentHash(_KeepRule):
    """Keep the document whose text has the lowest digest: a random but reproducible choice.

    Other tools call this "the first by hash".
    """

    kind: Literal["ContentHash"] = "ContentHash"

    def rank_documents(self, documents: KeepFeatures) -> UInt64s:
        """Compute the rank of each document; the lowest is kept."""
        first = np.ascontiguousarray(documents.digests[:, :8]).view(">u8").reshape(-1)
        return first.astype(np.uint64) >> np.uint64(64 - RANKS_BITS)


class BestSignal(_KeepRule):
    """Keep the document with the highest (or lowest) value of a stored column, as float32.

    A document without a value comes last. The column is any signal, count or score that the run
    stores, for example `BestSignal(signal="educational")`.
    """

    kind: Literal["BestSignal"] = "BestSignal"
    signal: str  # column to compare documents by: any signal, count or score that the run stores
    highest: bool = True  # keep the highest value, else the lowest

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the stored columns that the rule reads."""
        return (self.signal,)

    def rank_documents(self, documents: KeepFeatures) -> UInt64s:
        """Compute the rank of each document; the lowest is kept."""
        # -0.0 becomes 0.0
        values = documents.columns[self.signal].astype(np.float32) + np.float32(0)
        bits = (-values if self.highest else values).view(np.uint32)
        # The bits of floats sort like their values once the bits of negative floats are inverted.
        rising = np.where(bits >> 31, ~bits, bits | np.uint32(2**31)).astype(np.uint64)
        return np.where(np.isnan(values), np.uint64(WORST), rising)


class Earliest(_KeepRule):
    """Keep the document that was fetched first, or whose crawl or source is listed first.

    `by = "date"` compares the column `date` to the second; a document without a date comes last.
    `by = "crawl"` compares the position of the crawl in the run file's list `against` of earlier
    outputs, then that of the source in the run file.
    """

    kind: Literal["Earliest"] = "Earliest"
    # How documents are ordered: by the column `date`, or by the order of crawls in `against`.
    by: Literal["date", "crawl"] = "date"

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the stored columns that the rule reads."""
        return ("date",) if self.by == "date" else ()

    def rank_documents(self, documents: KeepFeatures) -> UInt64s:
        """Compute the rank of each document; the lowest is kept."""
        if self.by == "crawl":  # `rank_across_crawls` adds the crawl
            return np.full(len(documents), documents.source_number, np.uint64)
        return np.array([_parse_seconds(date) for date in documents.columns["date"]], np.uint64)


class SourcePriority(_KeepRule):
    """Keep the document of the source listed first, then by the rule `next`.

    Sources that are not listed come after those that are.
    """

    kind: Literal["SourcePriority"] = "SourcePriority"
    # Sources from the best to the worst; unlisted sources come last.
    sources: tuple[str, ...] = Field(min_length=1, max_length=_SOURCES - 1)
    # Rule that decides between documents of the same source.
    next: Longest | ContentHash | BestSignal | Earliest = Field(
        default=Longest(), discriminator="kind"
    )

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the stored columns that the rule reads."""
        return self.next.columns

    def rank_documents(self, documents: KeepFeatures) -> UInt64s:
        """Compute the rank of each document; the lowest is kept."""
        named = documents.source in self.sources
        place = self.sources.index(documents.source) if named else len(self.sources)
        return self.next.rank_documents(documents) | np.uint64(place << RANKS_BITS)


KeepRule = Longest | ContentHash | BestSignal | Earliest | SourcePriority


def rank_across_crawls(rule: KeepRule, ranks: UInt64s, crawl: int) -> UInt64s:
    """Return `ranks`, made comparable with the ranks of documents of other crawls.

    `rule` gave `ranks` to documents of the crawl with number `crawl`.
    """
    inner = rule.next if isinstance(rule, SourcePriority) else rule
    if not isinstance(inner, Earliest) or inner.by != "crawl":
        return ranks
    return ranks | np.uint64(crawl << _SOURCE_BITS)


def _parse_seconds(date: str | None) -> int:
    """Return the seconds since year 0 of an ISO 8601 date in UTC, or WORST if there is none."""
    try:
        moment = np.datetime64((date or "").removesuffix("Z"), "s")
    except ValueError:
        return WORST
    if np.isnat(moment):
        return WORST
    elapsed = moment - np.datetime64("0000-01-01", "s")
    return min(max(0, int(elapsed / np.timedelta64(1, "s"))), WORST)
