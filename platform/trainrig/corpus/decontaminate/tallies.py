"""What a decontamination found, by benchmark: numbers and a few samples, ready for JSON."""

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.decontaminate.benchmark_overlap import count_units, list_thresholds
from trainrig.corpus.decontaminate.decide import Touch
from trainrig.corpus.decontaminate.index import Index
from trainrig.corpus.decontaminate.matching import Totals
from trainrig.corpus.decontaminate.settings import GPT3, Llama2
from trainrig.corpus.signals.shares import compute_shares

LEAST_SHARES = (0.2, 0.5, 0.7, 0.8, 1.0)  # of an example, at which examples are counted
COMMON = 20  # n-grams told of
SAMPLES = 3  # documents told of for each benchmark
CONTEXT = 150  # characters on each side of what is shown
LONGEST = 600  # characters of what is shown


@dataclass(frozen=True)
class BenchmarkRow:
    """One benchmark and the corpus, in both directions.

    examples = clean + between + dirty + not_looked_for. Under GPT3 an example is dirty with the
    first n-gram found, under Llama2 `between` is neither clean nor dirty; else that is 0.
    """

    benchmark: str
    words: int  # of an n-gram
    examples: int
    not_looked_for: int  # too short for the rule
    found: int  # of which the corpus holds any n-gram, before anything was removed
    common_only: int  # found, but only by n-grams too common to act on
    clean: int
    between: int
    dirty: int
    documents: int  # that the rule says hold the benchmark
    documents_fallen: int
    documents_cut: int


@dataclass(frozen=True)
class ShareRow:
    """How many examples of a benchmark the corpus holds to such a share."""

    benchmark: str
    least_share: float  # of an example's units: n-grams, or for Llama words
    examples: int


@dataclass(frozen=True)
class CommonRow:
    """An n-gram of a benchmark that so many documents hold that nothing is removed for it."""

    text: str  # its words, as they are compared
    documents: int
    benchmark: str  # the first that has it


@dataclass(frozen=True, order=True)
class ContaminatedSample:
    """A contaminated document, where it holds a benchmark."""

    benchmark: str
    id: str
    url: str
    line: int  # of an example with this text, in the benchmark's file, from 1
    before: str
    text: str  # what the two have in common, cut off if it is long
    after: str


@dataclass(frozen=True)
class ContaminationTallies:
    """All that a report shows of it."""

    style: str  # kind
    documents: int  # looked at
    contaminated: int
    benchmarks: tuple[BenchmarkRow, ...]
    shares: tuple[ShareRow, ...]
    common: tuple[CommonRow, ...]  # under GPT3, those that most documents hold
    samples: tuple[ContaminatedSample, ...]


def tally_contamination(
    index: Index, totals: Totals, counts: Mapping[str, Any], samples: Iterable[ContaminatedSample]
) -> ContaminationTallies:
    """The account of a corpus.

    Args:
        index: of the benchmarks.
        totals: of all splits.
        counts: the sum of `Decision.counts()` over all splits.
        samples: of all splits; the lowest ids of each benchmark are shown.
    """
    parts_E, wholes_E = _count_found_units(index, totals)
    shares_E = compute_shares(parts_E, wholes_E)
    kinds = _Kinds(index, totals, shares_E, parts_E)
    rows, by_share = [], []
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
                **{kind: int(is_E[own].sum()) for kind, is_E in kinds.masks.items()},
            )
        )
        looked_for = ~kinds.masks["not_looked_for"][own]
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


def _count_found_units(index: Index, totals: Totals) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Units of each example: those that the corpus holds, and all."""
    style, examples_B = index.settings.style, index.examples_B
    if isinstance(style, GPT3):
        places = index.grams.orders_B > 0
        found = totals.unit_documents[index.grams.grams_B[places]] > 0
        examples, most = examples_B[places], len(index.lines_E)
        return np.bincount(examples[found], minlength=most), np.bincount(examples, minlength=most)
    held = np.bincount(examples_B[totals.unit_documents > 0], minlength=len(index.lines_E))
    return held, count_units(index, style)


class _Kinds:
    """Which examples are counted in which columns of a row."""

    def __init__(
        self,
        index: Index,
        totals: Totals,
        shares_E: NDArray[np.float64],
        parts_E: NDArray[np.int64],
    ) -> None:
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
            dirty, clean = found, looked_for & ~found
        else:
            least = np.repeat(list_thresholds(index, style), np.diff(index.firsts))
            dirty = found & (shares_E >= least)
            below = style.clean_below if isinstance(style, Llama2) else least
            clean = looked_for & (shares_E < below)
        self.masks = {
            "not_looked_for": ~looked_for,
            "found": found,
            "common_only": common_only,
            "clean": clean,
            "between": looked_for & ~clean & ~dirty,
            "dirty": dirty,
        }


def sample(touch: Touch, identity: str, url: str, text: str) -> ContaminatedSample:
    """What a report shows of a touched document: its id, URL and text."""
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
    """The SAMPLES documents of the lowest ids for each benchmark: ids are digests, so any."""
    by_benchmark: dict[str, list[ContaminatedSample]] = {}
    for each in samples:
        by_benchmark.setdefault(each.benchmark, []).append(each)
    chosen: list[Sequence[ContaminatedSample]] = [
        heapq.nsmallest(SAMPLES, by_benchmark[name]) for name in sorted(by_benchmark)
    ]
    return [each for few in chosen for each in few]
