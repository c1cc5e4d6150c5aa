"""Which documents a set of rules drops, from their stored columns alone: no text is looked at.

So other thresholds decide again in seconds. Every rule is tried on every document, whichever came
first: the tallies tell what a rule would drop by itself beside what it was the first to drop.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.filters.percentile_threshold import PercentileThreshold
from trainrig.corpus.limits import LANGUAGE, Among, Columns, Limit

BYTES = "bytes"  # the column of UTF-8 bytes of a document's text
NO_LANGUAGE = "none"

# Where histograms are cut: counts by powers of two, all else finely up to 1 and by quarter
# octaves above, since most are shares.
INTEGER_EDGES = np.concatenate([[0], 2.0 ** np.arange(0, 41)])
# Shares end with a bin for 1 itself.
EDGES = np.concatenate([np.arange(0, 52) / 50, 2.0 ** (np.arange(1, 81) / 4)])


Bound = Limit | Among | PercentileThreshold


class HasLimits(Protocol):
    """A filter, or whatever else of a run file can drop a document."""

    @property
    def kind(self) -> str:
        """Its name in a run file and in what it drops."""

    def iterate_limits(self) -> Iterator[Bound]:
        """Its rules."""


@dataclass(frozen=True)
class Rule:
    """One limit under its full name: "GopherQuality.word_count"."""

    name: str
    limit: Bound


def list_rules(filters: Iterable[HasLimits]) -> tuple[Rule, ...]:
    """All rules in their order; the first that a document breaks is why it falls."""
    return tuple(
        Rule(f"{each.kind}.{limit.rule}", limit)
        for each in filters
        for limit in each.iterate_limits()
    )


Thresholds = Mapping[str, Mapping[str, float]]
"""Rule → language → value: where the cuts of the rules that need it fall."""


def select_unbound(rules: Sequence[Rule]) -> list[Rule]:
    """The rules whose cuts the corpus sets."""
    return [rule for rule in rules if isinstance(rule.limit, PercentileThreshold)]


def bind_rules(rules: Sequence[Rule], thresholds: Thresholds) -> tuple[Rule, ...]:
    """`rules` with their cuts, so that all can decide."""
    return tuple(
        Rule(rule.name, rule.limit.bind(thresholds[rule.name]))
        if isinstance(rule.limit, PercentileThreshold)
        else rule
        for rule in rules
    )


def list_columns(rules: Sequence[Rule]) -> list[str]:
    """The columns that deciding and telling need."""
    signals = {rule.limit.signal for rule in rules}
    return sorted(signals | {LANGUAGE, BYTES})


@dataclass(frozen=True)
class Verdicts:
    """What became of each document by the rules."""

    rules: tuple[Rule, ...]
    broken: NDArray[np.bool_]  # [rules, documents]

    @property
    def first(self) -> NDArray[np.int64]:
        """[documents] the index of the first rule broken, or -1."""
        if not self.rules:
            return np.full(self.broken.shape[1], -1, np.int64)
        return np.where(self.broken.any(0), self.broken.argmax(0), -1)

    def list_reasons(self) -> list[str | None]:
        """The name of the first rule that each document breaks, or None."""
        return [self.rules[index].name if index >= 0 else None for index in self.first.tolist()]


def decide(rules: Sequence[Rule], columns: Columns, documents: int) -> Verdicts:
    """What `rules` say of `documents` documents."""
    broken = np.zeros((len(rules), documents), bool)
    for index, rule in enumerate(rules):
        broken[index] = rule.limit.mark_broken(columns)
    return Verdicts(tuple(rules), broken)


def tally(verdicts: Verdicts, columns: Columns) -> dict[str, Any]:
    """Documents and bytes by language: seen, kept, and for each rule dropped first and broken.

    {"seen": {language: {"documents", "bytes"}}, "passed": the same, "rules": {rule: {language:
    {"first_documents", "first_bytes", "any_documents", "any_bytes"}}}}.
    """
    names, which = np.unique(columns[LANGUAGE].astype(str), return_inverse=True)
    languages = [name or NO_LANGUAGE for name in names.tolist()]
    sizes = columns[BYTES].astype(np.int64)
    first = verdicts.first

    def by_language(chosen: NDArray[np.bool_], prefix: str = "") -> dict[str, dict[str, int]]:
        documents = np.bincount(which[chosen], minlength=len(languages))
        # Weights are added as doubles, exact to 2**53 bytes.
        sums = np.bincount(which[chosen], weights=sizes[chosen], minlength=len(languages))
        return {
            name: {f"{prefix}documents": int(documents[n]), f"{prefix}bytes": int(sums[n])}
            for n, name in enumerate(languages)
            if documents[n]
        }

    rules: dict[str, dict[str, dict[str, int]]] = {}
    for index, rule in enumerate(verdicts.rules):
        found = by_language(verdicts.broken[index], "any_")
        for name, more in by_language(first == index, "first_").items():
            found[name] |= more
        rules[rule.name] = found
    everything = np.ones(len(sizes), bool)
    return {"seen": by_language(everything), "passed": by_language(first < 0), "rules": rules}


def build_histograms(verdicts: Verdicts, columns: Columns) -> dict[str, dict[str, int]]:
    """Signal → index of a bin of `choose_edges` → documents, for each signal that a rule bounds."""
    found: dict[str, dict[str, int]] = {}
    for rule in verdicts.rules:
        values = columns[rule.limit.signal]
        if not isinstance(rule.limit, Among) and rule.limit.signal not in found:
            edges = choose_edges(np.issubdtype(values.dtype, np.integer))
            finite = values[np.isfinite(values)]
            bins = np.clip(np.searchsorted(edges, finite, side="right") - 1, 0, len(edges) - 1)
            counts = np.bincount(bins, minlength=len(edges))
            found[rule.limit.signal] = {str(n): int(counts[n]) for n in np.flatnonzero(counts)}
    return found


def choose_edges(counts: bool) -> NDArray[np.float64]:
    """The lower edges of the bins of a column of counts, or of another; the last bin is open."""
    return INTEGER_EDGES if counts else EDGES


@dataclass(frozen=True)
class WipedOut:
    """A step that took too much of a source."""

    source: str
    step: str  # a rule, or how copies are found
    dropped: int
    documents: int  # that the step was given


def find_wiped_out(
    dropped: Mapping[str, int], documents: int, source: str, share: float, least: int
) -> WipedOut | None:
    """The first step that dropped over `share` of the documents, `least` or more, that reached it.

    Args:
        dropped: documents by the step that was the first to drop them, in the order of the steps.
        documents: that reached the first step.
        source: whose they are.
        share: of the documents that reached a step.
        least: documents below which a share says nothing.
    """
    left = documents
    for step, number in dropped.items():
        if left >= least and number > share * left:
            return WipedOut(source, step, number, left)
        left -= number
    return None
