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

from trainrig.corpus.array_types import Bools, Int64s, UInt8s, UInt32s
from trainrig.corpus.compiled import compile_nogil
from trainrig.corpus.decontaminate.benchmark_grams import Hits
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


class BenchmarkOverlap:
    """Accumulator of the overlap of documents with benchmarks, fed batch by batch.

    It takes about 20 bytes of memory per benchmark word.
    """

    def __init__(self, index: Index, style: BySize) -> None:
        self._index = index
        self._examples_B = index.examples_B
        self._whole_words = not isinstance(style, PaLM)
        self._skips = style.skips if isinstance(style, Llama2) else 0
        self._least_units_E = find_unit_thresholds(index, style)
        # A stamp is the number of the last document that contained the word, example or n-gram.
        # Numbers count all documents from 1.
        self._stamps_B = np.zeros(len(index.words_B), np.int64)
        self._stamps_E = np.zeros(len(index.lines_E), np.int64)
        self._units_E = np.zeros(len(index.lines_E), np.int64)  # units in the stamped document
        self._touched_E = np.empty(len(index.lines_E), np.int64)
        grams = len(index.grams.firsts_G1) - 1
        self._stamps_G = np.zeros(grams, np.int64)
        self._benchmarks_E = np.repeat(np.arange(len(index.names)), np.diff(index.firsts))
        self._documents = 0
        self.marks_B = np.zeros(len(index.words_B), np.bool_)  # units that any document contained

    def add(self, hits: Hits, numbers_W: UInt32s, firsts_D1: Int64s) -> OverlapSpans:
        """Add a batch of documents and return the spans that match dirty examples.

        `numbers_W` are the vocabulary numbers of the words; `firsts_D1` are offsets into it.
        """
        index = self._index
        # This upper bound is generous, but untouched pages of memory are never allocated.
        capacity = len(hits.texts) * len(index.names)
        documents, begins, stops = (np.empty(capacity, np.int64) for _ in range(3))
        spans = OverlapSpans(documents, np.empty(capacity, np.uint32), begins, stops)
        filled = 0
        # Documents run one after another, because each must be complete before its share is known.
        bounds = np.flatnonzero(np.diff(hits.texts, prepend=-1, append=-2))
        for begin, end in zip(bounds.tolist(), bounds[1:].tolist(), strict=False):
            position = int(hits.texts[begin])
            document = self._documents + position + 1
            of_document = (
                hits.words[begin:end],
                hits.grams[begin:end],
                index.grams.firsts_G1,
                index.grams.places,
                index.grams.orders_B,
                index.words_B,
                index.texts_B,
                index.ends_P,
                self._examples_B,
                numbers_W,
                int(firsts_D1[position]),
                int(firsts_D1[position + 1]),
                document,
            )
            count = _mark_overlap(
                *of_document,
                self._whole_words,
                self._skips,
                self._stamps_B,
                self._stamps_G,
                self._stamps_E,
                self._units_E,
                self._touched_E,
                self.marks_B,
            )
            touched = np.sort(self._touched_E[:count])
            dirty = touched[self._units_E[touched] >= self._least_units_E[touched]]
            if not len(dirty):
                continue
            self._stamps_E[dirty] = -document  # the minus sign marks dirty examples
            filled = _find_longest_spans(
                *of_document,
                self._skips,
                self._stamps_E,
                self._benchmarks_E,
                position,
                filled,
                *spans,
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
    word: _Integer,
    place: _Integer,
    order: _Integer,
    skips: int,
    words_B: UInt32s,
    texts_B: UInt32s,
    ends_P: Int64s,
    numbers: UInt32s,
    first: int,
    end: int,
) -> _Integer:
    """Return the length in words of the match at `word` and `place`.

    With skips, a match extends to the right over up to `skips` different words. The result is then
    0 if the word before also matches, so the same match is not counted twice.
    """
    if skips == 0:
        return order
    text = texts_B[place]
    if (
        word > first
        and place > 0
        and texts_B[place - 1] == text
        and numbers[word - 1] == words_B[place - 1]
    ):
        return 0
    most = min(end - word, ends_P[text] - place)
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
    hit_words: Int64s,
    hit_grams: UInt32s,
    gram_firsts: Int64s,
    gram_places: UInt32s,
    orders_B: UInt8s,
    words_B: UInt32s,
    texts_B: UInt32s,
    ends_P: Int64s,
    examples_B: UInt32s,
    numbers: UInt32s,
    first: int,
    end: int,
    document: int,
    whole_words: bool,
    skips: int,
    stamps_B: Int64s,
    stamps_G: Int64s,
    stamps_E: Int64s,
    units_E: Int64s,
    touched_E: Int64s,
    marks_B: Bools,
) -> int:
    """Mark the units that one document contains, and return the number of examples it touches.

    The numbers of these examples are written to the start of `touched_E`.
    """
    touched = 0
    for hit in range(len(hit_words)):
        word = hit_words[hit]
        gram = np.int64(hit_grams[hit])
        if skips == 0:  # a repeated n-gram of the same document marks nothing new
            if stamps_G[gram] == document:
                continue
            stamps_G[gram] = document
        order = np.int64(orders_B[gram_places[gram_firsts[gram]]])
        for index in range(gram_firsts[gram], gram_firsts[gram + 1]):
            place = np.int64(gram_places[index])
            length = _measure_span(
                word, place, order, skips, words_B, texts_B, ends_P, numbers, first, end
            )
            if length == 0:
                continue
            example = np.int64(examples_B[place])
            if stamps_E[example] != document:
                stamps_E[example] = document
                units_E[example] = 0
                touched_E[touched] = example
                touched += 1
            if not whole_words:
                length = 1
            for offset in range(length):
                if stamps_B[place + offset] == document:
                    continue
                if offset < order or numbers[word + offset] == words_B[place + offset]:
                    stamps_B[place + offset] = document
                    marks_B[place + offset] = True
                    units_E[example] += 1
    return touched


@compile_nogil
def _find_longest_spans(
    hit_words: Int64s,
    hit_grams: UInt32s,
    gram_firsts: Int64s,
    gram_places: UInt32s,
    orders_B: UInt8s,
    words_B: UInt32s,
    texts_B: UInt32s,
    ends_P: Int64s,
    examples_B: UInt32s,
    numbers: UInt32s,
    first: int,
    end: int,
    document: int,
    skips: int,
    stamps_E: Int64s,
    benchmarks_E: Int64s,
    position: int,
    filled: int,
    documents: Int64s,
    examples: UInt32s,
    begins: Int64s,
    stops: Int64s,
) -> int:
    """Record the longest match with a dirty example, at each hit and for each benchmark.

    The matches of one document are appended to `documents`, `examples`, `begins` and `stops`, which
    hold `filled` entries. Returns the new number of entries.
    """
    for hit in range(len(hit_words)):
        word = hit_words[hit]
        gram = np.int64(hit_grams[hit])
        order = np.int64(orders_B[gram_places[gram_firsts[gram]]])
        last_benchmark = np.int64(-1)  # places ascend, so benchmarks ascend too
        for index in range(gram_firsts[gram], gram_firsts[gram + 1]):
            place = np.int64(gram_places[index])
            example = np.int64(examples_B[place])
            if stamps_E[example] != -document:
                continue
            length = _measure_span(
                word, place, order, skips, words_B, texts_B, ends_P, numbers, first, end
            )
            if length == 0:
                continue
            if benchmarks_E[example] != last_benchmark:
                last_benchmark = benchmarks_E[example]
                documents[filled] = position
                examples[filled] = example
                begins[filled] = word
                stops[filled] = word + length
                filled += 1
            elif word + length > stops[filled - 1]:
                examples[filled - 1] = example
                stops[filled - 1] = word + length
    return filled
