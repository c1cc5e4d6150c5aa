"""Choice of documents to drop and spans to remove because they overlap with benchmarks.

Array suffixes: B words of all benchmarks, P texts of all benchmarks.
"""

import functools
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trainrig.corpus.decontaminate.benchmark_index import Index
from trainrig.corpus.decontaminate.decontamination_settings import GPT3
from trainrig.corpus.decontaminate.document_matches import Matches, Totals
from trainrig.corpus.removed_spans import RemovedSpan

# name of the removal step, and the reason recorded for documents it drops
CONTAMINATED = "contaminated"


@dataclass(frozen=True, order=True)
class Touch:
    """The longest span that a document shares with a benchmark."""

    document: int  # position of the document in the split, from 0
    benchmark: str
    line: int  # line (from 1) of the matching example in the benchmark's file
    start: int  # character position in the document
    end: int


@dataclass(frozen=True)
class Decision:
    """Documents of a split to drop, and spans to remove from the others.

    Documents are numbered by their position in the split, from 0.
    """

    documents: int
    touches: tuple[Touch, ...]  # sorted by document, then benchmark
    fallen: frozenset[int] = frozenset()
    # spans to remove, by kept document
    cuts: dict[int, tuple[RemovedSpan, ...]] = field(default_factory=dict)

    def compute_counts(self) -> dict[str, Any]:
        """Return the counts of documents that overlap with benchmarks, in total and per benchmark.

        The counts of all splits can be added up.
        """
        fallen = [touch for touch in self.touches if touch.document in self.fallen]
        cut = [touch for touch in self.touches if touch.document in self.cuts]
        return {
            "contaminated_documents": len({touch.document for touch in self.touches}),
            "contaminated_fallen": len(self.fallen),
            "contaminated_cut": len(self.cuts),
            "characters_cut": sum(c.end - c.start for cuts in self.cuts.values() for c in cuts),
            "contaminated_by": dict(Counter(touch.benchmark for touch in self.touches)),
            "fallen_by": dict(Counter(touch.benchmark for touch in fallen)),
            "cut_by": dict(Counter(touch.benchmark for touch in cut)),
        }


def decide(index: Index, matches: Matches, totals: Totals) -> Decision:
    """Decide which documents of a split are dropped and which spans are removed.

    The decision depends on the split's `matches` and on the `totals` of all splits.
    """
    style = index.settings.style
    acted_on = np.ones(len(matches.span_of), bool)
    if isinstance(style, GPT3):
        acted_on = totals.unit_documents[matches.span_of] <= style.most_documents
    spans: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    columns = (matches.span_documents, matches.span_starts, matches.span_ends, matches.span_of)
    for document, *span in zip(*(column[acted_on].tolist() for column in columns), strict=True):
        spans[document].append((span[0], span[1], span[2]))
    examples_of = _build_example_lookup(index) if isinstance(style, GPT3) else _list_itself
    touches = tuple(_find_touches(examples_of, index, spans))
    if style.remove == "nothing" or not spans:
        return Decision(len(matches.lengths), touches)
    if style.remove == "document":
        return Decision(len(matches.lengths), touches, frozenset(spans))
    fallen = set()
    cuts = {}
    for document, found in spans.items():
        places = [(start, end) for start, end, _ in found]
        length = int(matches.lengths[document])
        if isinstance(style, GPT3):
            kept = find_kept_pieces(places, length, style)
        else:
            kept = _find_gaps(places, length)
        if kept:
            cuts[document] = tuple(
                RemovedSpan(start, end, CONTAMINATED) for start, end in _find_gaps(kept, length)
            )
        else:
            fallen.add(document)
    return Decision(len(matches.lengths), touches, frozenset(fallen), cuts)


def _list_itself(example: int) -> tuple[int]:
    return (example,)


def find_kept_pieces(
    collisions: Sequence[tuple[int, int]], length: int, style: GPT3
) -> list[tuple[int, int]]:
    """Return the spans to keep of a document of `length` characters; none if it is dropped."""
    windows = [
        (max(0, start - style.window), min(length, end + style.window)) for start, end in collisions
    ]
    pieces = _find_gaps(windows, length)
    if len(pieces) > style.most_pieces:
        return []
    return [piece for piece in pieces if piece[1] - piece[0] >= style.shortest_piece]


def _find_gaps(spans: Sequence[tuple[int, int]], length: int) -> list[tuple[int, int]]:
    """Return the spans of a text of `length` characters that no span of `spans` covers."""
    found = []
    place = 0
    for start, end in sorted(spans):
        if start > place:
            found.append((place, start))
        place = max(place, end)
    if place < length:
        found.append((place, length))
    return found


def _find_touches(
    examples_of: Callable[[int], Sequence[int]],
    index: Index,
    spans: Mapping[int, Sequence[tuple[int, int, int]]],
) -> list[Touch]:
    """Return the longest merged span shared with one example, for each document and benchmark."""
    found: list[Touch] = []
    for document, there in spans.items():
        runs: dict[int, list[tuple[int, int]]] = defaultdict(list)  # merged spans of each example
        for start, end, of in sorted(there):
            for example in examples_of(of):
                own = runs[example]
                if own and start <= own[-1][1]:
                    own[-1] = (own[-1][0], max(end, own[-1][1]))
                else:
                    own.append((start, end))
        best: dict[str, Touch] = {}
        in_order = sorted((s - e, s, e, example) for example in runs for s, e in runs[example])
        for _, start, end, example in in_order:
            name, line = index.name_example(example)
            best.setdefault(name, Touch(document, name, line, start, end))
        found += best.values()
    return sorted(found)


def _build_example_lookup(index: Index) -> Callable[[int], Sequence[int]]:
    """Return a function that maps an n-gram to the first example of each benchmark with it."""

    @functools.cache
    def examples(gram: int) -> list[int]:
        of = np.unique(index.examples_P[index.texts_B[index.find_places(gram)]])
        benchmarks = np.searchsorted(np.array(index.firsts), of, side="right")
        firsts: list[int] = of[np.unique(benchmarks, return_index=True)[1]].tolist()
        return firsts

    return examples
