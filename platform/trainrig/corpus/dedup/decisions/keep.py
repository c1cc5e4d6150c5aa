"""The keep order: which of several similar documents is kept, independent of the order of the
inputs.

A rule gives each document a *rank*, and of two alike the lower one may stay. Equal ranks go by the
id, which is a digest of what the document is, so that the choice is the same whatever came first.
A new rule: a class beside these, and its name in `KeepRule`.

A rank has 64 bits: 16 for the source's place, 48 for what is compared within it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from trainrig.config import Settings

RANKS_BITS = 48
WORST: int = 2**RANKS_BITS - 1
_CRAWL_BITS = 24  # of those of `Earliest(by="crawl")`: earlier crawls, then the source in its crawl
_SOURCES = 2**16


@dataclass(frozen=True)
class KeepFeatures:
    """What rules go by, of the documents of one source that passed."""

    characters: NDArray[np.int64]
    digests: NDArray[np.uint8]  # [documents, 16], of the texts
    source: str
    source_number: int  # its place in the run file
    columns: Mapping[str, NDArray[Any]]  # those that the rule names

    def __len__(self) -> int:
        return len(self.characters)


class Longest(Settings):
    """The longest text, in characters."""

    kind: Literal["Longest"] = "Longest"

    @property
    def columns(self) -> tuple[str, ...]:
        """The stored columns that the rule reads."""
        return ()

    def rank_documents(self, documents: KeepFeatures) -> NDArray[np.uint64]:
        """One a document; the lowest stays."""
        short_by = WORST - np.minimum(documents.characters, WORST)
        return np.asarray(short_by, np.uint64)


class ContentHash(Settings):
    """The lowest digest of the text: none is better than another, and none of a kind is favoured.

    What "the first by hash" is elsewhere.
    """

    kind: Literal["ContentHash"] = "ContentHash"

    @property
    def columns(self) -> tuple[str, ...]:
        """The stored columns that the rule reads."""
        return ()

    def rank_documents(self, documents: KeepFeatures) -> NDArray[np.uint64]:
        """One a document; the lowest stays."""
        first = np.ascontiguousarray(documents.digests[:, :8]).view(">u8").reshape(-1)
        return first.astype(np.uint64) >> np.uint64(64 - RANKS_BITS)


class BestSignal(Settings):
    """The highest, or lowest, value of a stored column, as float32; a document without comes last.

    Any signal, count or score that the run stores: `BestSignal(signal="educational")`.
    """

    kind: Literal["BestSignal"] = "BestSignal"
    signal: str  # column to compare documents by: any signal, count or score that the run stores
    highest: bool = True  # whether the highest value stays, or the lowest

    @property
    def columns(self) -> tuple[str, ...]:
        """The stored columns that the rule reads."""
        return (self.signal,)

    def rank_documents(self, documents: KeepFeatures) -> NDArray[np.uint64]:
        """One a document; the lowest stays."""
        values = documents.columns[self.signal].astype(np.float32) + np.float32(0)  # no minus zero
        bits = (-values if self.highest else values).view(np.uint32)
        # The bits of floats rise with their values once negative ones are turned round.
        rising = np.where(bits >> 31, ~bits, bits | np.uint32(2**31)).astype(np.uint64)
        return np.where(np.isnan(values), np.uint64(WORST), rising)


class Earliest(Settings):
    """What was fetched first, or what the run file names first.

    `by = "date"` goes by the column `date` to the second; without one a document comes last.
    `by = "crawl"` goes by the outputs in `against`, in their order, then by the order of sources.
    """

    kind: Literal["Earliest"] = "Earliest"
    # What "first" goes by: the column `date`, or the order of crawls in `against`.
    by: Literal["date", "crawl"] = "date"

    @property
    def columns(self) -> tuple[str, ...]:
        """The stored columns that the rule reads."""
        return ("date",) if self.by == "date" else ()

    def rank_documents(self, documents: KeepFeatures) -> NDArray[np.uint64]:
        """One a document; the lowest stays."""
        if self.by == "crawl":
            return np.full(len(documents), documents.source_number, np.uint64)
        return np.array([_parse_seconds(date) for date in documents.columns["date"]], np.uint64)


class SourcePriority(Settings):
    """That of the source named first; those not named come after them; then the `next` rule."""

    kind: Literal["SourcePriority"] = "SourcePriority"
    # Sources from the best to the worst; those not named come after them.
    sources: tuple[str, ...] = Field(min_length=1, max_length=_SOURCES - 1)
    # Rule for documents of the same source.
    next: Longest | ContentHash | BestSignal | Earliest = Field(
        default=Longest(), discriminator="kind"
    )

    @property
    def columns(self) -> tuple[str, ...]:
        """The stored columns that the rule reads."""
        return self.next.columns

    def rank_documents(self, documents: KeepFeatures) -> NDArray[np.uint64]:
        """One a document; the lowest stays."""
        named = documents.source in self.sources
        place = self.sources.index(documents.source) if named else len(self.sources)
        return self.next.rank_documents(documents) | np.uint64(place << RANKS_BITS)


KeepRule = Longest | ContentHash | BestSignal | Earliest | SourcePriority


def rank_across_crawls(rule: KeepRule, ranks: NDArray[np.uint64], crawl: int) -> NDArray[np.uint64]:
    """`ranks` that `rule` gave in a crawl of its own, where it is number `crawl` of several."""
    inner = rule.next if isinstance(rule, SourcePriority) else rule
    if not isinstance(inner, Earliest) or inner.by != "crawl":
        return ranks
    return ranks | np.uint64(crawl << _CRAWL_BITS)


def _parse_seconds(date: str | None) -> int:
    """Seconds from year 0 on of an ISO 8601 date in UTC; WORST for none."""
    try:
        moment = np.datetime64((date or "").removesuffix("Z"), "s")
    except ValueError:
        return WORST
    if np.isnat(moment):
        return WORST
    since = moment - np.datetime64("0000-01-01", "s")
    return min(max(0, int(since / np.timedelta64(1, "s"))), WORST)
