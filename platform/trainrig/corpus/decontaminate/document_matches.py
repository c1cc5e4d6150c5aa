"""Matches of the documents of each split, and totals over all splits.

Whether to act on an n-gram may depend on how many documents of the corpus hold it. So there are two
passes over the corpus, with a sum between them:

match(index, texts)              for each split  →  Matches, a file
    merge(index, match files)        once            →  Totals, a file
    decide(index, Matches, Totals)   for each split  →  Decision (decide.py)

The totals are sums, so they do not depend on how the corpus is split or in which order.

Array suffixes: B words of all benchmarks, G different n-grams, W words and D documents of a batch.
A 1 marks one entry more.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.array_files import open_arrays, write_arrays
from trainrig.corpus.array_types import Int64s, UInt32s
from trainrig.corpus.decontaminate.benchmark_grams import Hits
from trainrig.corpus.decontaminate.benchmark_index import Index
from trainrig.corpus.decontaminate.benchmark_overlap import BenchmarkOverlap
from trainrig.corpus.decontaminate.decontamination_settings import GPT3, BySize

# kinds of files
_MATCHES = "benchmark matches"
_TOTALS = "benchmark totals"
_CHARACTERS = 2**18  # characters of a batch: at about 30 bytes each, a batch fits in the CPU cache


@dataclass(frozen=True)
class Matches:
    """Benchmark matches in the documents of one split.

    Documents are numbered by their position in the split, from 0. A unit is an n-gram under GPT3,
    otherwise a word of the benchmarks (see benchmark_overlap.py). A span belongs to an n-gram under
    GPT3, otherwise to an example of which the document holds enough to be dirty.
    """

    lengths: Int64s  # characters of each document
    units: UInt32s  # units found, ascending
    unit_documents: UInt32s  # documents with each n-gram; 1 for other units
    span_documents: Int64s  # ascending
    span_of: UInt32s
    span_starts: Int64s  # characters of the document
    span_ends: Int64s

    def save(self, path: str) -> None:
        """Write the matches to `path`.

        Equal matches give equal bytes.
        """
        write_arrays(path, _MATCHES, dict(vars(self)), None)

    @classmethod
    def load(cls, path: str) -> "Matches":
        """Read matches written by `save`.

        Raises DataError if the file does not hold matches.
        """
        return cls(**open_arrays(path, _MATCHES)[0])


@dataclass(frozen=True)
class Totals:
    """Benchmark matches in all splits together."""

    documents: int
    unit_documents: UInt32s  # [units] as in Matches, but for all units that exist

    def save(self, path: str) -> None:
        """Write the totals to `path`.

        Equal totals give equal bytes.
        """
        write_arrays(path, _TOTALS, {"unit_documents": self.unit_documents}, self.documents)

    @classmethod
    def load(cls, path: str) -> "Totals":
        """Read totals written by `save`.

        Raises DataError if the file does not hold totals.
        """
        arrays, documents = open_arrays(path, _TOTALS)
        return cls(documents, **arrays)


def match(index: Index, texts: Iterable[str]) -> Matches:
    """Find the benchmark matches in the documents of a split.

    It takes about 30 bytes of memory per benchmark word.
    """
    style = index.settings.style
    finder = _Collisions(index) if isinstance(style, GPT3) else _Shares(index, style)
    lengths: list[int] = []
    spans: list[tuple[NDArray[Any], ...]] = [tuple(np.empty(0, kind) for kind in _SPAN)]
    for batch in _iterate_batches(texts):
        documents, *others = finder.find_spans(batch)
        spans.append((documents + len(lengths), *others))
        lengths += map(len, batch)
    columns = (np.concatenate(column) for column in zip(*spans, strict=True))
    return Matches(np.array(lengths, np.int64), *finder.list_units(), *columns)


def merge(index: Index, paths: Iterable[str]) -> Totals:
    """Add up the matches in the files at `paths`."""
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
    """Finder of all benchmark n-grams in documents (GPT3)."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._counts_G = np.zeros(len(index.grams.firsts_G1) - 1, np.uint32)

    def find_spans(self, texts: Sequence[str]) -> tuple[NDArray[Any], ...]:
        hits, words, _ = self._index.search_texts(texts)
        np.add.at(self._counts_G, _list_distinct_grams(hits), 1)
        last = hits.words + self._index.count_gram_words(hits.grams) - 1
        return hits.texts, hits.grams, words.begins_W[hits.words], words.stops_W[last]

    def list_units(self) -> tuple[UInt32s, UInt32s]:
        found = np.flatnonzero(self._counts_G).astype(np.uint32)
        return found, self._counts_G[found]


def _list_distinct_grams(hits: Hits) -> UInt32s:
    """Return the n-grams of all texts, each listed once per text."""
    order = np.lexsort((hits.grams, hits.texts))
    texts = hits.texts[order]
    grams = hits.grams[order]
    first = np.ones(len(order), bool)
    first[1:] = (texts[1:] != texts[:-1]) | (grams[1:] != grams[:-1])
    return grams[first]


class _Shares:
    """Finder of examples of which a document holds enough (PaLM, Llama 2 and 3)."""

    def __init__(self, index: Index, style: BySize) -> None:
        self._index = index
        self._overlap = BenchmarkOverlap(index, style)

    def find_spans(self, texts: Sequence[str]) -> tuple[NDArray[Any], ...]:
        hits, words, numbers = self._index.search_texts(texts)
        spans = self._overlap.add(hits, numbers, words.firsts_D1)
        begins = words.begins_W[spans.begins]
        stops = words.stops_W[spans.stops - 1]
        return spans.documents, spans.examples, begins, stops

    def list_units(self) -> tuple[UInt32s, UInt32s]:
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
            batch = []
            characters = 0
    if batch:
        yield batch
