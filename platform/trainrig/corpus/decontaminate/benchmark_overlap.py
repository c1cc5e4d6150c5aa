"""Overlap of documents with benchmark examples, by the rules of PaLM, Llama 2 and Llama 3.

Overlap is counted in units. For PaLM a unit is an n-gram of an example, identified by the position
of its first word. For Llama a unit is a word of an example. Each unit that a document contains is
counted once, however many matches cover it. An example is dirty in a document that contains enough
of its units.

An order is the n of an n-gram. A place is a position among the words of all benchmarks. An example
consists of one or more texts, such as a question and its choices.

Array suffixes: B words of all benchmarks, P texts of all benchmarks, E examples, G different
n-grams, W words and D documents of a batch; a 1 marks one entry more.
"""

from typing import NamedTuple

import numpy as np

from trainrig.corpus.array_types import Bools, Int64s, UInt32s
from trainrig.corpus.compiled import compile_nogil
from trainrig.corpus.decontaminate.benchmark_grams import Grams, Hits
from trainrig.corpus.decontaminate.benchmark_index import Index
from trainrig.corpus.decontaminate.decontamination_settings import BySize, Llama2, Llama3, PaLM
from trainrig.corpus.signals.text_arrays import SHARE_STEPS, compute_shares

_Integer = int | np.int64


class OverlapSpans(NamedTuple):
    """Spans of documents that match a dirty example.

    Positions are words of a batch of documents. Spans may overlap.
    """

    documents: Int64s  # counted from the first document of the batch
    examples: UInt32s  # one example of the benchmark that the span matches
    begins: Int64s
    stops: Int64s


class _Benchmarks(NamedTuple):
    """The words of all benchmarks, and the n-grams that begin at them."""

    grams: Grams
    words_B: UInt32s
    texts_B: UInt32s
    ends_P: Int64s
    examples_B: UInt32s
    benchmarks_E: Int64s  # benchmark of each example
    skips: int  # most positions of a match that may differ


class _Document(NamedTuple):
    """One document of a batch: its hits, and its words."""

    number: int  # counts all documents from 1
    hit_words: Int64s
    hit_grams: UInt32s
    numbers_W: UInt32s  # vocabulary numbers of the words of the batch
    first: int  # the first word of the document in the batch
    end: int


class _Stamps(NamedTuple):
    """The last document that contained each word, example and n-gram, by its number."""

    words_B: Int64s
    grams_G: Int64s
    examples_E: Int64s
    units_E: Int64s  # units of the example in the stamped document
    marks_B: Bools  # units that any document contained


class BenchmarkOverlap:
    """Accumulator of the overlap of documents with benchmarks, fed batch by batch.

    It takes about 20 bytes of memory per benchmark word.
    """

    def __init__(self, index: Index, style: BySize) -> None:
        self._index = index
        skips = style.skips if isinstance(style, Llama2) else 0
        self._benchmarks = _Benchmarks(
            index.grams,
            index.words_B,
            index.texts_B,
            index.ends_P,
            index.examples_B,
            np.repeat(np.arange(len(index.names)), np.diff(index.firsts)),
            skips,
        )
        self._whole_words = not isinstance(style, PaLM)
        self._least_units_E = find_unit_thresholds(index, style)
        words = len(index.words_B)
        examples = len(index.lines_E)
        self._stamps = _Stamps(
            np.zeros(words, np.int64),
            np.zeros(len(index.grams.firsts_G1) - 1, np.int64),
            np.zeros(examples, np.int64),
            np.zeros(examples, np.int64),
            np.zeros(words, np.bool_),
        )
        self._touched_E = np.empty(examples, np.int64)
        self._documents = 0

    @property
    def marks_B(self) -> Bools:
        """The units that any document contained."""
        return self._stamps.marks_B

    def add(self, hits: Hits, numbers_W: UInt32s, firsts_D1: Int64s) -> OverlapSpans:
        """Add a batch of documents and return the spans that match dirty examples.

        `numbers_W` are the vocabulary numbers of the words; `firsts_D1` are offsets into it.
        """
        # This upper bound is generous, but untouched pages of memory are never allocated.
        capacity = len(hits.texts) * len(self._index.names)
        documents, begins, stops = (np.empty(capacity, np.int64) for _ in range(3))
        spans = OverlapSpans(documents, np.empty(capacity, np.uint32), begins, stops)
        filled = 0
        # Documents run one after another, because each must be complete before its share is known.
        bounds = np.flatnonzero(np.diff(hits.texts, prepend=-1, append=-2))
        for begin, end in zip(bounds.tolist(), bounds[1:].tolist(), strict=False):
            position = int(hits.texts[begin])
            document = _Document(
                self._documents + position + 1,
                hits.words[begin:end],
                hits.grams[begin:end],
                numbers_W,
                int(firsts_D1[position]),
                int(firsts_D1[position + 1]),
            )
            count = _mark_overlap(
                document, self._benchmarks, self._whole_words, self._stamps, self._touched_E
            )
            touched = np.sort(self._touched_E[:count])
            dirty = touched[self._stamps.units_E[touched] >= self._least_units_E[touched]]
            if not len(dirty):
                continue
            self._stamps.examples_E[dirty] = -document.number  # the minus sign marks dirty examples
            filled = _find_longest_spans(
                document, self._benchmarks, self._stamps, position, filled, spans
            )
        self._documents += len(firsts_D1) - 1
        return OverlapSpans(
            spans.documents[:filled].copy(),
            spans.examples[:filled].copy(),
            spans.begins[:filled].copy(),
            spans.stops[:filled].copy(),
        )


def count_units(index: Index, style: BySize) -> Int64s:
    """Return the number of units (n-grams or words) of each example."""
    begins_gram_B = index.grams.orders_B > 0 if isinstance(style, PaLM) else None
    examples = index.examples_B if begins_gram_B is None else index.examples_B[begins_gram_B]
    return np.bincount(examples, minlength=len(index.lines_E)).astype(np.int64)


def list_thresholds(index: Index, style: BySize) -> list[float]:
    """Return the smallest share of units that makes an example dirty, for each benchmark."""
    own = style.thresholds if isinstance(style, Llama3) else {}
    return [own.get(name, style.dirty_from) for name in index.names]


def find_unit_thresholds(index: Index, style: BySize) -> Int64s:
    """Return the smallest number of units that makes each example dirty.

    Shares are rounded to 1 / SHARE_STEPS before they are compared with the threshold. An example
    without units gets the largest int64, so it is never dirty.
    """
    all_units_E = count_units(index, style)
    thresholds_E = np.repeat(list_thresholds(index, style), np.diff(index.firsts))
    # lowest rounded share that reaches the threshold, in steps of 1 / SHARE_STEPS
    steps = np.ceil(np.round(thresholds_E * SHARE_STEPS, 6))
    # Rounding makes the result one of `near`, `near + 1` and `near + 2`.
    near = np.floor((steps - 0.5) / SHARE_STEPS * all_units_E).astype(np.int64)
    enough = near + 2
    for units in (near + 1, near):
        enough = np.where(compute_shares(units, all_units_E) >= thresholds_E, units, enough)
    return np.where(all_units_E > 0, np.maximum(enough, 1), np.iinfo(np.int64).max)


@compile_nogil
def _measure_span(
    word: _Integer, place: _Integer, order: _Integer, benchmarks: _Benchmarks, document: _Document
) -> _Integer:
    """Return the length in words of the match at `word` and `place`.

    With skips, a match extends to the right over up to `skips` different words. The result is then
    0 if the word before also matches, so the same match is not counted twice.
    """
    skips = benchmarks.skips
    if skips == 0:
        return order
    words_B = benchmarks.words_B
    texts_B = benchmarks.texts_B
    numbers = document.numbers_W
    text = texts_B[place]
    if (
        word > document.first
        and place > 0
        and texts_B[place - 1] == text
        and numbers[word - 1] == words_B[place - 1]
    ):
        return 0
    most = min(document.end - word, benchmarks.ends_P[text] - place)
    length = order
    skipped = 0
    for offset in range(order, most):
        if numbers[word + offset] == words_B[place + offset]:
            length = offset + 1
        else:
            skipped += 1
            if skipped > skips:
                break
    return length


@compile_nogil
def _mark_overlap(
    document: _Document,
    benchmarks: _Benchmarks,
    whole_words: bool,
    stamps: _Stamps,
    touched_E: Int64s,
) -> int:
    """Mark the units that one document contains, and return the number of examples it touches.

    The numbers of these examples are written to the start of `touched_E`.
    """
    grams = benchmarks.grams
    touched = 0
    for hit in range(len(document.hit_words)):
        word = document.hit_words[hit]
        gram = np.int64(document.hit_grams[hit])
        if benchmarks.skips == 0:  # a repeated n-gram of the same document marks nothing new
            if stamps.grams_G[gram] == document.number:
                continue
            stamps.grams_G[gram] = document.number
        order = np.int64(grams.orders_B[grams.places[grams.firsts_G1[gram]]])
        for index in range(grams.firsts_G1[gram], grams.firsts_G1[gram + 1]):
            place = np.int64(grams.places[index])
            length = _measure_span(word, place, order, benchmarks, document)
            if length == 0:
                continue
            example = np.int64(benchmarks.examples_B[place])
            if stamps.examples_E[example] != document.number:
                stamps.examples_E[example] = document.number
                stamps.units_E[example] = 0
                touched_E[touched] = example
                touched += 1
            if not whole_words:
                length = 1
            for at in range(place, place + length):
                if stamps.words_B[at] == document.number:
                    continue
                found = document.numbers_W[word + at - place]
                if at < place + order or found == benchmarks.words_B[at]:
                    stamps.words_B[at] = document.number
                    stamps.marks_B[at] = True
                    stamps.units_E[example] += 1
    return touched


@compile_nogil
def _find_longest_spans(
    document: _Document,
    benchmarks: _Benchmarks,
    stamps: _Stamps,
    position: int,
    filled: int,
    spans: OverlapSpans,
) -> int:
    """Record the longest match with a dirty example, at each hit and for each benchmark.

    The matches of one document are appended to `spans`, which hold `filled` entries. Returns the
    new number of entries.
    """
    grams = benchmarks.grams
    for hit in range(len(document.hit_words)):
        word = document.hit_words[hit]
        gram = np.int64(document.hit_grams[hit])
        order = np.int64(grams.orders_B[grams.places[grams.firsts_G1[gram]]])
        last_benchmark = np.int64(-1)  # places ascend, so benchmarks ascend too
        for index in range(grams.firsts_G1[gram], grams.firsts_G1[gram + 1]):
            place = np.int64(grams.places[index])
            example = np.int64(benchmarks.examples_B[place])
            if stamps.examples_E[example] != -document.number:
                continue
            length = _measure_span(word, place, order, benchmarks, document)
            if length == 0:
                continue
            if benchmarks.benchmarks_E[example] != last_benchmark:
                last_benchmark = benchmarks.benchmarks_E[example]
                spans.documents[filled] = position
                spans.examples[filled] = example
                spans.begins[filled] = word
                spans.stops[filled] = word + length
                filled += 1
            elif word + length > spans.stops[filled - 1]:
                spans.examples[filled - 1] = example
                spans.stops[filled - 1] = word + length
    return filled
