"""Passes that remove the text of benchmarks from documents, or drop the documents.

    benchmarks     index the benchmarks
    matches        find their text in each split
    matched        add up the matches of all splits
    decontaminate  decide what to remove, given the totals

See decontaminate/.
"""

import dataclasses
import json
from collections.abc import Sequence

import numpy as np

from trainrig import storage
from trainrig.corpus.array_files import save_arrays
from trainrig.corpus.decontaminate import (
    CONTAMINATED,
    Decision,
    Decontamination,
    Index,
    Matches,
    Totals,
    Touch,
    contamination_report,
    decide,
    match,
    merge,
)
from trainrig.corpus.repeated_text.record_files import RemovedSpans, save_spans
from trainrig.corpus.stages.surviving_documents import SurvivingDocuments
from trainrig.splits import Done, Task, Work

BENCHMARK_PASSES = ("benchmarks", "matches", "matched", "decontaminate")
BENCHMARKS_INDEX = "benchmarks.index"
BENCHMARKS_TOTALS = "benchmarks.totals"


def index_benchmarks(settings: Decontamination, path: str) -> Work:
    """Return the work that builds the index of all benchmarks at `path`."""

    def index(task: Task) -> Done:
        Index.of(settings).save(path)
        return {}, {}

    return index


def match_documents(surviving: SurvivingDocuments, path: str) -> Work:
    """Return the work that finds benchmark text in the documents of a split.

    `path` names the file of the index.
    """
    index = Index.load(path)

    def match_split(task: Task) -> Done:
        name = task["name"]
        texts = (
            text
            for batch in surviving.select(task).iterate_texts_before(CONTAMINATED, name)
            for text in batch
        )
        match(index, texts).save(surviving.path_of("matches", f"{name}.npz"))
        return {}, {}

    return match_split


def merge_matches(index: str, matches: Sequence[str], path: str) -> Work:
    """Return the work that adds up the matches of all splits and writes the totals to `path`."""

    def add(task: Task) -> Done:
        merge(Index.load(index), matches).save(path)
        return {}, {}

    return add


def decontaminate(surviving: SurvivingDocuments, path: str, totals_path: str) -> Work:
    """Return the work that decides which spans of a split to remove and which documents to drop."""
    index = Index.load(path)
    totals = Totals.load(totals_path)

    def decide_split(task: Task) -> Done:
        name = task["name"]
        matches = Matches.load(surviving.path_of("matches", f"{name}.npz"))
        decision = decide(index, matches, totals)
        save_spans(surviving.name_spans_file(CONTAMINATED, name), _build_removed_spans(decision))
        fallen = np.array(sorted(decision.fallen), np.int64)
        save_arrays(surviving.name_fallen_file(name), {"fallen": fallen})
        told = json.dumps(
            [
                dataclasses.asdict(found)
                for found in _collect_samples(surviving.select(task), name, decision)
            ]
        )
        storage.write(surviving.path_of("touched", f"{name}.json"), told.encode())
        counts = {"documents": decision.documents, "characters": int(matches.lengths.sum())}
        return {**counts, **decision.compute_counts()}, {}

    return decide_split


def _build_removed_spans(decision: Decision) -> RemovedSpans:
    found = [
        (document, cut.start, cut.end)
        for document, cuts in sorted(decision.cuts.items())
        for cut in cuts
    ]
    return RemovedSpans(*np.array(found, np.int64).reshape(-1, 3).T)


def _collect_samples(
    surviving: SurvivingDocuments, split: str, decision: Decision
) -> list[contamination_report.ContaminatedSample]:
    touches: dict[int, list[Touch]] = {}
    for touch in decision.touches:
        touches.setdefault(touch.document, []).append(touch)
    found = []
    before = 0
    for rows, texts in surviving.iterate_rows_before(CONTAMINATED, split, ["id", "url"]):
        ids = rows["id"].to_pylist()
        urls = rows["url"].to_pylist()
        for nth, (identity, url, text) in enumerate(zip(ids, urls, texts, strict=True), before):
            found += [
                contamination_report.sample(touch, identity, url, text)
                for touch in touches.get(nth, ())
            ]
        found = contamination_report.pick_samples(found)
        before += len(texts)
    return found
