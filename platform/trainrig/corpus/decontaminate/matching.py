"""Matches the documents of a split, and of all splits together, with the benchmarks.

Two passes over a corpus, with a sum between them, as what is done about an n-gram may hang on how
many documents hold it:

    match(index, texts)          each split, by itself    →  Matches, a file
    merge(index, match files)    once                     →  Totals, a file
    decide(index, Matches, Totals)   each split           →  Decision   (deciding.py)

The totals are sums: they are the same however the corpus was split, and in whatever order.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.decontaminate.benchmark_overlap import BenchmarkOverlap
from trainrig.corpus.decontaminate.grams import Hits
from trainrig.corpus.decontaminate.index import Index
from trainrig.corpus.decontaminate.settings import GPT3, BySize
from trainrig.corpus.models.array_file import open_arrays, write_arrays

_MATCHES, _TOTALS = "benchmark matches", "benchmark totals"  # kinds of files
_CHARACTERS = 2**18  # looked at together: what that takes, some 30 bytes each, stays in a cache


@dataclass(frozen=True)
class Matches:
    """What was found in a split. Documents go by their place in it, from 0.

    A unit is an n-gram under GPT3, else a word of the benchmarks (see holding.py). A span belongs
    to an n-gram under GPT3; else to an example of which its document holds enough to be dirty.
    """

    lengths: NDArray[np.int64]  # characters of each document
    units: NDArray[np.uint32]  # found, ascending
    unit_documents: NDArray[np.uint32]  # that hold each n-gram; 1 for other units
    span_documents: NDArray[np.int64]  # ascending
    span_of: NDArray[np.uint32]
    span_starts: NDArray[np.int64]  # characters of the document
    span_ends: NDArray[np.int64]

    def save(self, path: str) -> None:
        """Write it: equal matches give equal bytes."""
        write_arrays(path, _MATCHES, dict(vars(self)), None)

    @classmethod
    def load(cls, path: str) -> "Matches":
        """What `save` wrote. Raises DataError for another file."""
        return cls(**open_arrays(path, _MATCHES)[0])


@dataclass(frozen=True)
class Totals:
    """What was found in all splits."""

    documents: int
    unit_documents: NDArray[np.uint32]  # [units] as in Matches, of every unit that there is

    def save(self, path: str) -> None:
        """Write it: equal totals give equal bytes."""
        write_arrays(path, _TOTALS, {"unit_documents": self.unit_documents}, self.documents)

    @classmethod
    def load(cls, path: str) -> "Totals":
        """What `save` wrote. Raises DataError for another file."""
        arrays, documents = open_arrays(path, _TOTALS)
        return cls(documents, **arrays)


def match(index: Index, texts: Iterable[str]) -> Matches:
    """What the documents of a split hold. Memory: some 30 bytes a word of the benchmarks."""
    style = index.settings.style
    finder = _Collisions(index) if isinstance(style, GPT3) else _Shares(index, style)
    lengths: list[int] = []
    spans: list[tuple[NDArray[Any], ...]] = [tuple(np.empty(0, kind) for kind in _SPAN)]
    for batch in _iterate_batches(texts):
        documents, *others = finder.find_spans(batch)
        spans.append((documents + len(lengths), *others))
        lengths += map(len, batch)
    columns = (np.concatenate(each) for each in zip(*spans, strict=True))
    return Matches(np.array(lengths, np.int64), *finder.list_units(), *columns)


def merge(index: Index, paths: Iterable[str]) -> Totals:
    """The sum of the matches in the files at `paths`."""
    counted = isinstance(index.settings.style, GPT3)
    units = len(index.grams.firsts_G1) - 1 if counted else len(index.words_B)
    sums = np.zeros(units, np.uint32)
    documents = 0
    for path in paths:
        matches = Matches.load(path)
        documents += len(matches.lengths)
        sums[matches.units] += matches.unit_documents
    return Totals(documents, sums if counted else np.minimum(sums, 1))


_SPAN = (np.int64, np.uint32, np.int64, np.int64)


class _Collisions:
    """Every n-gram of benchmarks that documents hold."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._counts_G = np.zeros(len(index.grams.firsts_G1) - 1, np.uint32)

    def find_spans(self, texts: Sequence[str]) -> tuple[NDArray[Any], ...]:
        hits, words, _ = self._index.search_texts(texts)
        np.add.at(self._counts_G, _list_distinct_grams(hits), 1)
        last = hits.words + self._index.count_gram_words(hits.grams) - 1
        return hits.texts, hits.grams, words.begins_W[hits.words], words.stops_W[last]

    def list_units(self) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
        found = np.flatnonzero(self._counts_G).astype(np.uint32)
        return found, self._counts_G[found]


def _list_distinct_grams(hits: Hits) -> NDArray[np.uint32]:
    """The n-grams of each text, each once a text."""
    order = np.lexsort((hits.grams, hits.texts))
    texts, grams = hits.texts[order], hits.grams[order]
    first = np.ones(len(order), bool)
    first[1:] = (texts[1:] != texts[:-1]) | (grams[1:] != grams[:-1])
    return grams[first]


class _Shares:
    """What documents hold of the examples of which one of them holds enough."""

    def __init__(self, index: Index, style: BySize) -> None:
        self._index, self._overlap = index, BenchmarkOverlap(index, style)

    def find_spans(self, texts: Sequence[str]) -> tuple[NDArray[Any], ...]:
        hits, words, numbers = self._index.search_texts(texts)
        spans = self._overlap.add(hits, numbers, words.firsts_D1)
        begins, stops = words.begins_W[spans.begins], words.stops_W[spans.stops - 1]
        return spans.documents, spans.examples, begins, stops

    def list_units(self) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
        found = np.flatnonzero(self._overlap.marks_B).astype(np.uint32)
        return found, np.ones_like(found)


def _iterate_batches(texts: Iterable[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    characters = 0
    for text in texts:
        batch.append(text)
        characters += len(text)
        if characters >= _CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch
