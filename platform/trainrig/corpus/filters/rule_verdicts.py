"""Apply rules to stored signals of documents, without their text, so new thresholds take seconds.

Every rule is applied to every document, even if an earlier rule dropped it: tallies count both what
a rule was the first to drop and what it would drop alone.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from trainrig.corpus.array_types import Bools, Float64s, Int64s
from trainrig.corpus.filters.general_rules import FilterSettings
from trainrig.corpus.limits import (
    LANGUAGE,
    PAGE_KIND,
    Among,
    Columns,
    Limit,
    PercentileThreshold,
)

BYTES = "bytes"  # column with the UTF-8 bytes of a document's text
NO_LANGUAGE = "none"

# Lower edges of histogram bins. Integer signals, such as word counts, have bins by powers of two.
# Most other signals are shares: bins are 0.02 wide up to 1; above, each doubling has four bins.
INTEGER_EDGES = np.concatenate([[0], 2.0 ** np.arange(0, 41)])
# A share of exactly 1 has a separate bin, [1, 1.02).
EDGES = np.concatenate([np.arange(0, 52) / 50, 2.0 ** (np.arange(1, 81) / 4)])


Bound = Limit | Among | PercentileThreshold


class HasLimits(Protocol):
    """A filter, or another entry of a run file that can drop documents."""

    @property
    def kind(self) -> str:
        """The name in the run file and in reasons for dropping."""

    def iterate_limits(self) -> Iterator[Bound]:
        """Yield the limits."""


@dataclass(frozen=True)
class Rule:
    """One limit under its full name, such as "GopherQuality.word_count".

    The name of a rule for some kinds of page lists them: "GopherQuality.word_count[article,forum]".
    If filters have rules of the same name, the second one ends with "#2", and so on.
    """

    name: str
    limit: Bound

    @property
    def columns(self) -> set[str]:
        """The columns that decide whether the limit is broken, but for the language."""
        return {self.limit.signal} | (set() if self.limit.page_kinds is None else {PAGE_KIND})


def list_rules(filters: Iterable[HasLimits]) -> tuple[Rule, ...]:
    """List all rules in order; a document is dropped by the first that it breaks."""
    rules: list[Rule] = []
    seen = Counter[str]()  # rules by name: tallies and thresholds are stored by it
    for filter_ in filters:
        page_kinds = filter_.page_kinds if isinstance(filter_, FilterSettings) else None
        for limit in filter_.iterate_limits():
            name = f"{filter_.kind}.{limit.rule}"
            if page_kinds is not None:
                limit = replace(limit, page_kinds=page_kinds)
                name = f"{name}[{','.join(page_kinds)}]"
            seen[name] += 1
            rules.append(Rule(f"{name}#{seen[name]}" if seen[name] > 1 else name, limit))
    return tuple(rules)


Thresholds = Mapping[str, Mapping[str, float]]
"""Thresholds of the rules whose limits depend on the corpus: rule → language → value."""


def select_unbound(rules: Sequence[Rule]) -> list[Rule]:
    """Return the rules whose thresholds are percentiles of the corpus, not numbers yet."""
    return [rule for rule in rules if isinstance(rule.limit, PercentileThreshold)]


def bind_rules(rules: Sequence[Rule], thresholds: Thresholds) -> tuple[Rule, ...]:
    """Return `rules` with their thresholds from `thresholds`, so that all can be applied."""
    return tuple(
        Rule(rule.name, rule.limit.bind(thresholds[rule.name]))
        if isinstance(rule.limit, PercentileThreshold)
        else rule
        for rule in rules
    )


def list_columns(rules: Sequence[Rule]) -> list[str]:
    """Return the columns that rules and tallies read, sorted."""
    return sorted({LANGUAGE, BYTES}.union(*(rule.columns for rule in rules)))


@dataclass(frozen=True)
class Verdicts:
    """The rules that each document breaks."""

    rules: tuple[Rule, ...]
    broken: Bools  # [rules, documents]

    @property
    def first(self) -> Int64s:
        """The index of the first rule that each document breaks, or -1: [documents]."""
        if not self.rules:
            return np.full(self.broken.shape[1], -1, np.int64)
        return np.where(self.broken.any(0), self.broken.argmax(0), -1)


def decide(rules: Sequence[Rule], columns: Columns, documents: int) -> Verdicts:
    """Apply all `rules` to all documents, of which there are `documents`."""
    broken = np.zeros((len(rules), documents), bool)
    for index, rule in enumerate(rules):
        broken[index] = rule.limit.mark_broken(columns)
    return Verdicts(tuple(rules), broken)


def tally(verdicts: Verdicts, columns: Columns) -> dict[str, Any]:
    """Count documents and bytes by language: all, those that break no rule, and by broken rule.

    The result is {"seen": {language: {"documents", "bytes"}}, "passed": the same, "rules": {rule:
    {language: {"any_documents", "any_bytes", "first_documents", "first_bytes"}}}}. `any` counts all
    documents that break the rule, `first` those that break no earlier one. Counts of no document
    are left out: languages, and the `first` counts of a language.
    """
    names, which = np.unique(columns[LANGUAGE].astype(str), return_inverse=True)
    languages = [name or NO_LANGUAGE for name in names.tolist()]
    sizes = columns[BYTES].astype(np.int64)
    first = verdicts.first

    def by_language(chosen: Bools, prefix: str = "") -> dict[str, dict[str, int]]:
        documents = np.bincount(which[chosen], minlength=len(languages))
        # numpy sums the sizes as doubles, which are exact up to 2**53 bytes.
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


def build_histograms(
    verdicts: Verdicts, columns: Columns, integers: Collection[str]
) -> dict[str, dict[str, int]]:
    """Count documents by bin, for each numeric signal with a rule; leave NaN and infinity out.

    The result is signal → index of a bin of `choose_edges` → documents. `integers` names the
    signals with bins for counts, because an integer column with nulls is an array of doubles.
    """
    found: dict[str, dict[str, int]] = {}
    for rule in verdicts.rules:
        values = columns[rule.limit.signal]
        if not isinstance(rule.limit, Among) and rule.limit.signal not in found:
            edges = choose_edges(rule.limit.signal in integers)
            finite = values[np.isfinite(values)]
            bins = np.clip(np.searchsorted(edges, finite, side="right") - 1, 0, len(edges) - 1)
            counts = np.bincount(bins, minlength=len(edges))
            found[rule.limit.signal] = {str(n): int(counts[n]) for n in np.flatnonzero(counts)}
    return found


def choose_edges(is_integer: bool) -> Float64s:
    """Return the lower edges of a signal's bins; the last bin has no upper edge."""
    return INTEGER_EDGES if is_integer else EDGES


def find_wiped_out(
    dropped: Mapping[str, int], documents: int, share: float, least: int
) -> tuple[str, int, int] | None:
    """Find the first step that dropped more than `share` of the documents that reached it.

    Returns the step, and how many documents it dropped of how many, or None.

    Args:
        dropped: documents dropped first by each step, in the order of the steps.
        documents: number of documents that reached the first step.
        share: largest accepted share of the documents that reached a step.
        least: steps that fewer documents reach are not checked.
    """
    left = documents
    for step, number in dropped.items():
        if left >= least and number > share * left:
            return step, number, left
        left -= number
    return None
