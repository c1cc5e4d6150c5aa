"""Drops documents that overlap with benchmarks, or removes the overlapping spans."""

import functools
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trainrig.corpus.decontaminate.index import Index
from trainrig.corpus.decontaminate.matching import Matches, Totals
from trainrig.corpus.decontaminate.settings import GPT3
from trainrig.corpus.files.removed_spans import RemovedSpan

CONTAMINATED = "contaminated"  # the reason why a document falls, and the step that cuts


@dataclass(frozen=True, order=True)
class Touch:
    """A benchmark in a document, and the longest of the places at which it is there."""

    document: int  # its place in the split
    benchmark: str
    line: int  # of an example that has what is at that place, in the benchmark's file, from 1
    start: int  # characters of the document
    end: int


@dataclass(frozen=True)
class Decision:
    """What is done about the documents of a split. Documents go by their place in it, from 0."""

    documents: int
    touches: tuple[Touch, ...]  # by document and benchmark
    fallen: frozenset[int] = frozenset()
    cuts: dict[int, tuple[RemovedSpan, ...]] = field(default_factory=dict)  # of documents that stay

    def compute_counts(self) -> dict[str, Any]:
        """Documents that hold a benchmark, in all and for each, and what was done about them.

        Sums over splits are those of the corpus.
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
    """What becomes of the documents of a split, by its matches and the totals of all splits."""
    style = index.settings.style
    acted_on = np.ones(len(matches.span_of), bool)
    if isinstance(style, GPT3):
        acted_on = totals.unit_documents[matches.span_of] <= style.most_documents
    spans: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    columns = (matches.span_documents, matches.span_starts, matches.span_ends, matches.span_of)
    for document, *span in zip(*(each[acted_on].tolist() for each in columns), strict=True):
        spans[document].append((span[0], span[1], span[2]))
    examples_of = _build_example_lookup(index) if isinstance(style, GPT3) else _list_itself
    touches = tuple(_find_touches(examples_of, index, spans))
    if style.remove == "nothing" or not spans:
        return Decision(len(matches.lengths), touches)
    if style.remove == "document":
        return Decision(len(matches.lengths), touches, frozenset(spans))
    fallen, cuts = set(), {}
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
    """What stays of a document of `length` characters: spans, none if it falls."""
    windows = [
        (max(0, start - style.window), min(length, end + style.window)) for start, end in collisions
    ]
    pieces = _find_gaps(windows, length)
    if len(pieces) > style.most_pieces:
        return []
    return [piece for piece in pieces if piece[1] - piece[0] >= style.shortest_piece]


def _find_gaps(spans: Sequence[tuple[int, int]], length: int) -> list[tuple[int, int]]:
    """The spans of a text of `length` characters that none of `spans` covers."""
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
    """The longest run of spans of one example, for each document and benchmark."""
    found: list[Touch] = []
    for document, there in spans.items():
        runs: dict[int, list[tuple[int, int]]] = defaultdict(list)  # by example
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
    """A function of the n-gram: of each benchmark that has it, the first example."""

    @functools.cache
    def examples(gram: int) -> list[int]:
        of = np.unique(index.examples_P[index.texts_B[index.find_places(gram)]])
        benchmarks = np.searchsorted(np.array(index.firsts), of, side="right")
        firsts: list[int] = of[np.unique(benchmarks, return_index=True)[1]].tolist()
        return firsts

    return examples
