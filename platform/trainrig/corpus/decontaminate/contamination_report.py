"""Results of decontamination by benchmark, for the curation report.

The results are counts and a few samples, ready for JSON. Array suffixes: B words, P texts and E
examples of all benchmarks.
"""

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainrig.corpus.array_types import Bools, Float64s, Int64s
from trainrig.corpus.decontaminate.benchmark_index import Index
from trainrig.corpus.decontaminate.benchmark_overlap import count_units, list_thresholds
from trainrig.corpus.decontaminate.decide import Touch
from trainrig.corpus.decontaminate.decontamination_settings import GPT3, Llama2
from trainrig.corpus.decontaminate.document_matches import Totals
from trainrig.corpus.signals.text_arrays import compute_shares

LEAST_SHARES = (0.2, 0.5, 0.7, 0.8, 1.0)  # shares of an example at which the report counts examples
COMMON = 20  # most common n-grams listed
SAMPLES = 3  # documents shown per benchmark
CONTEXT = 150  # characters of context on each side of a sample
LONGEST = 600  # characters of a sample's matching text


@dataclass(frozen=True)
class BenchmarkRow:
    """Overlap of one benchmark with the corpus.

    `examples` is the sum of `clean`, `between`, `dirty` and `not_looked_for`. Under GPT3 one n-gram
    found makes an example dirty. Under Llama2 `between` counts examples that are neither clean nor
    dirty; under other rules it is 0.
    """

    benchmark: str
    words: int  # words of an n-gram
    examples: int
    not_looked_for: int  # too short for the rule
    found: int  # examples with an n-gram in the corpus, before anything was removed
    common_only: int  # examples found only by n-grams too common to act on
    clean: int
    between: int
    dirty: int
    documents: int  # documents that hold the benchmark by the rule
    documents_fallen: int
    documents_cut: int


@dataclass(frozen=True)
class ShareRow:
    """Number of examples of a benchmark of which the corpus holds at least a given share."""

    benchmark: str
    least_share: float  # share of the example's units: n-grams, or words under the Llama rules
    examples: int


@dataclass(frozen=True)
class CommonRow:
    """A benchmark n-gram that is too common to be removed."""

    text: str  # the normalised words
    documents: int
    benchmark: str  # the first benchmark with the n-gram


@dataclass(frozen=True, order=True)
class ContaminatedSample:
    """A contaminated document, and the text it shares with a benchmark."""

    benchmark: str
    id: str
    url: str
    line: int  # line (from 1) of an example with this text in the benchmark's file
    before: str
    text: str  # the shared text, truncated if it is long
    after: str


@dataclass(frozen=True)
class ContaminationTallies:
    """Results of decontamination that a report shows."""

    style: str  # `kind` of the rule
    documents: int  # documents searched
    contaminated: int
    benchmarks: tuple[BenchmarkRow, ...]
    shares: tuple[ShareRow, ...]
    common: tuple[CommonRow, ...]  # under GPT3, the n-grams in the most documents
    samples: tuple[ContaminatedSample, ...]

    def list_shares(self) -> list[tuple[str | int, ...]]:
        """Return for each benchmark its name, and its examples by the share found."""
        examples: dict[str, list[int]] = {}
        for row in self.shares:
            examples.setdefault(row.benchmark, []).append(row.examples)
        return [(name, *counts) for name, counts in examples.items()]


def tally_contamination(
    index: Index, totals: Totals, counts: Mapping[str, Any], samples: Iterable[ContaminatedSample]
) -> ContaminationTallies:
    """Tally the decontamination of a corpus for its report.

    Args:
        index: index of the benchmarks.
        totals: totals of all splits.
        counts: the sum of `Decision.compute_counts()` over all splits.
        samples: samples of all splits; those with the lowest ids are shown for each benchmark.
    """
    parts_E, wholes_E = _count_found_units(index, totals)
    shares_E = compute_shares(parts_E, wholes_E)
    masks = _mark_examples(index, totals, shares_E, parts_E)
    rows = []
    by_share = []
    for number, name in enumerate(index.names):
        own = slice(*index.firsts[number : number + 2])
        rows.append(
            BenchmarkRow(
                benchmark=name,
                words=index.orders[number],
                examples=own.stop - own.start,
                documents=counts["contaminated_by"].get(name, 0),
                documents_fallen=counts["fallen_by"].get(name, 0),
                documents_cut=counts["cut_by"].get(name, 0),
                **{kind: int(is_E[own].sum()) for kind, is_E in masks.items()},
            )
        )
        looked_for = ~masks["not_looked_for"][own]
        by_share += [
            ShareRow(name, least, int((looked_for & (shares_E[own] >= least)).sum()))
            for least in LEAST_SHARES
        ]
    return ContaminationTallies(
        index.settings.style.kind,
        totals.documents,
        counts["contaminated_documents"],
        tuple(rows),
        tuple(by_share),
        tuple(_list_common_grams(index, totals)),
        tuple(pick_samples(samples)),
    )


def _list_common_grams(index: Index, totals: Totals) -> list[CommonRow]:
    style = index.settings.style
    if not isinstance(style, GPT3):
        return []
    common = np.flatnonzero(totals.unit_documents > style.most_documents)
    most = common[np.argsort(-totals.unit_documents[common].astype(np.int64), kind="stable")]
    return [
        CommonRow(
            index.format_gram(gram),
            int(totals.unit_documents[gram]),
            index.name_example(int(index.examples_P[index.texts_B[index.find_places(gram)[0]]]))[0],
        )
        for gram in most[:COMMON].tolist()
    ]


def _count_found_units(index: Index, totals: Totals) -> tuple[Int64s, Int64s]:
    """Return the units of each example that the corpus holds, and all units of each example."""
    style = index.settings.style
    examples_B = index.examples_B
    if isinstance(style, GPT3):
        places = index.grams.orders_B > 0
        found = totals.unit_documents[index.grams.grams_B[places]] > 0
        examples = examples_B[places]
        most = len(index.lines_E)
        return np.bincount(examples[found], minlength=most), np.bincount(examples, minlength=most)
    held = np.bincount(examples_B[totals.unit_documents > 0], minlength=len(index.lines_E))
    return held, count_units(index, style)


def _mark_examples(
    index: Index, totals: Totals, shares_E: Float64s, parts_E: Int64s
) -> dict[str, Bools]:
    """Return masks of the examples that each column of a benchmark's row counts."""
    style = index.settings.style
    places = index.grams.orders_B > 0
    examples = index.examples_B[places]
    looked_for = np.zeros(len(index.lines_E), bool)
    looked_for[examples] = True
    found = parts_E > 0
    common_only = np.zeros_like(found)
    if isinstance(style, GPT3):
        holders = totals.unit_documents[index.grams.grams_B[places]]
        rare = np.zeros_like(found)
        rare[examples[(holders > 0) & (holders <= style.most_documents)]] = True
        common_only = found & ~rare
        dirty = found
        clean = looked_for & ~found
    else:
        least = np.repeat(list_thresholds(index, style), np.diff(index.firsts))
        dirty = found & (shares_E >= least)
        below = style.clean_below if isinstance(style, Llama2) else least
        clean = looked_for & (shares_E < below)
    return {
        "not_looked_for": ~looked_for,
        "found": found,
        "common_only": common_only,
        "clean": clean,
        "between": looked_for & ~clean & ~dirty,
        "dirty": dirty,
    }


def sample(touch: Touch, identity: str, url: str, text: str) -> ContaminatedSample:
    """Return the sample that a report shows of a contaminated document.

    `identity` is the id of the document.
    """
    end = min(touch.end, touch.start + LONGEST)
    return ContaminatedSample(
        touch.benchmark,
        identity,
        url,
        touch.line,
        text[max(0, touch.start - CONTEXT) : touch.start],
        text[touch.start : end],
        text[end : end + CONTEXT],
    )


def pick_samples(samples: Iterable[ContaminatedSample]) -> list[ContaminatedSample]:
    """Return the SAMPLES documents with the lowest ids, for each benchmark.

    Ids are digests, so this choice is random but reproducible.
    """
    by_benchmark: dict[str, list[ContaminatedSample]] = {}
    for candidate in samples:
        by_benchmark.setdefault(candidate.benchmark, []).append(candidate)
    chosen: list[Sequence[ContaminatedSample]] = [
        heapq.nsmallest(SAMPLES, by_benchmark[name]) for name in sorted(by_benchmark)
    ]
    return [candidate for few in chosen for candidate in few]
