"""Passes that remove text from the documents that survive deduplication.

There are four optional steps, each enabled by its section of the run file: lines of sites, common
lines, repeated substrings, and benchmarks. Each step gets the texts as the step before left them,
and all surviving documents of each split in their order, even those left empty. Deduplicating
documents before lines is the order of Llama 3 (arXiv:2407.21783, section 3.1.1): lines of a
duplicate are not counted twice.

    numbers          keep order of surviving documents
    site-keys, site-lines, cut-site-lines, site-examples  (stages.site_line_removal)
    line-keys, common-lines, cut-lines                  (repeated_text.common_lines)
    anchors, repeated, pieces, repeats, cut-substrings  (repeated_text.exact_substrings)
    benchmarks, matches, matched, decontaminate         (stages.benchmark_removal)
"""

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainrig import storage
from trainrig.corpus.array_files import save_arrays
from trainrig.corpus.curation_settings import Curation
from trainrig.corpus.decontaminate import (
    CONTAMINATED,
    Decontamination,
    Index,
    Totals,
    contamination_report,
)
from trainrig.corpus.dedup.dedup_decisions import KEPT, DedupDecisions, Documents
from trainrig.corpus.dedup.document_refs import SplitIndex
from trainrig.corpus.dedup.duplicate_search import MIB
from trainrig.corpus.dedup.keep_rules import KeepRule
from trainrig.corpus.repeated_text import common_lines, exact_substrings
from trainrig.corpus.repeated_text.site_lines import (
    SITE_LINES,
    SiteExample,
    SiteLines,
    choose_site_range_count,
)
from trainrig.corpus.report.removal_counts import MOST, CutRow, RemovalCounts
from trainrig.corpus.stages import benchmark_removal, site_line_removal
from trainrig.corpus.stages.apply_rules import PathBuilder
from trainrig.corpus.stages.benchmark_removal import BENCHMARKS_INDEX, BENCHMARKS_TOTALS
from trainrig.corpus.stages.surviving_documents import SurvivingDocuments, list_removal_steps
from trainrig.splits import Done, Phase, Split, Task, Work, sum_counts

Do = Callable[[str, Callable[[], Work], Sequence[Split]], Phase]
"""Function that runs the pass of the given name over all tasks that have no record yet."""


_PASSES = {
    SITE_LINES: site_line_removal.SITE_LINE_PASSES,
    common_lines.COMMON_LINES: ("line-keys", "common-lines", "cut-lines"),
    exact_substrings.EXACT_SUBSTRINGS: (
        "anchors",
        "repeated",
        "pieces",
        "repeats",
        "cut-substrings",
    ),
    CONTAMINATED: benchmark_removal.BENCHMARK_PASSES,
}


def list_removal_passes(run: Curation) -> list[str]:
    """Return the names of all passes of `run`, in order, without number suffixes."""
    numbered = ["numbers"] if run.common_lines or run.exact_substrings else []
    return [*numbered, *(name for step in list_removal_steps(run) for name in _PASSES[step])]


@dataclass(frozen=True)
class SpanRemoval:
    """Removal passes of one run."""

    run: Curation
    surviving: SurvivingDocuments
    splits: Sequence[Split]
    do: Do

    @property
    def path_of(self) -> PathBuilder:
        """Builder of the paths of this decision's files."""
        return self.surviving.path_of

    def find_spans(self, split_indexes: Sequence[SplitIndex]) -> RemovalCounts:
        """Run all removal passes and return the counts of what they removed."""
        run = self.run
        found = dict[str, dict[str, Any]]()
        repeated_texts: Mapping[str, Sequence[exact_substrings.RepeatedText]] = {}
        contamination = None
        site_examples: Sequence[SiteExample] | None = None
        if run.common_lines or run.exact_substrings:
            work = functools.partial(_number_documents, split_indexes, run.keep_rule, self.path_of)
            self.do("numbers", work, [Split("all", {})])
        if run.site_lines:
            found[SITE_LINES] = self._remove_site_lines(run.site_lines)
            site_examples = site_line_removal.read_examples(self.path_of, len(self.splits))
        if run.common_lines:
            found[common_lines.COMMON_LINES] = self._remove_common_lines(run.common_lines)
        if run.exact_substrings:
            found[exact_substrings.EXACT_SUBSTRINGS] = self._remove_substrings(run.exact_substrings)
            repeated_texts = exact_substrings.read_repeated_texts(
                self._list_files("passages", "keys"), MOST, run.memory * MIB
            )
        if run.decontamination:
            found[CONTAMINATED] = self._remove_benchmarks(run.decontamination)
            contamination = self._read_contamination(sum_counts(found[CONTAMINATED].values()))
        rows = [
            CutRow.of(
                step,
                source.name,
                sum_counts(
                    counts[split.name] for split in self.splits if split.task["source"] == number
                ),
            )
            for step, counts in found.items()
            for number, source in enumerate(run.sources)
        ]
        return RemovalCounts(tuple(rows), repeated_texts, contamination, site_examples)

    def _read_contamination(
        self, counts: Mapping[str, Any]
    ) -> contamination_report.ContaminationTallies:
        samples = [
            contamination_report.ContaminatedSample(**row)
            for data in storage.read_files(self._list_files("touched", "json"))
            for row in json.loads(data)
        ]
        index = Index.load(self.path_of(BENCHMARKS_INDEX))
        return contamination_report.tally_contamination(
            index, Totals.load(self.path_of(BENCHMARKS_TOTALS)), counts, samples
        )

    def _remove_site_lines(self, settings: SiteLines) -> dict[str, Any]:
        sources = [source.name for source in self.run.sources]
        names = [split.name for split in self.splits]
        counted = self._run_on_splits("site-keys", site_line_removal.count_lines, settings, sources)
        distinct = sum_counts(counted.values())["distinct"]
        parts = choose_site_range_count(distinct, self.run.memory * MIB)
        find = functools.partial(site_line_removal.find_lines, self.path_of, names, parts, settings)
        self.do(f"site-lines-{parts}", find, _number_tasks(parts))
        cut = self._run_on_splits(
            "cut-site-lines", site_line_removal.cut_lines, settings, sources, parts, names
        )
        merge = functools.partial(site_line_removal.merge_split_examples, self.path_of, names)
        groups = _number_tasks(site_line_removal.count_groups(len(names)))
        self.do("site-examples", merge, groups)
        return cut

    def _remove_common_lines(self, settings: common_lines.CommonLines) -> dict[str, Any]:
        sources = [source.name for source in self.run.sources]
        counted = self._run_on_splits("line-keys", _count_line_keys, settings, sources)
        parts = common_lines.choose_line_range_count(
            sum_counts(counted.values())["distinct"], self.run.memory * MIB
        )
        keys = self._list_files("lines", "keys")
        common = self._name_parts(f"common-{parts}", "keys", parts)
        find = common_lines.find_common_lines
        work = functools.partial(_work_on_parts, find, keys, common, parts, settings)
        self.do(f"common-lines-{parts}", work, _number_tasks(parts))
        return self._run_on_splits("cut-lines", _cut_lines, settings, sources, common)

    def _remove_substrings(self, settings: exact_substrings.ExactSubstrings) -> dict[str, Any]:
        counted = self._run_on_splits("anchors", _count_anchors, settings)
        parts = exact_substrings.choose_anchor_range_count(
            sum_counts(counted.values())["distinct"], self.run.memory * MIB
        )
        keys = self._list_files("anchors", "keys")
        repeated = self._name_parts(f"repeated-{parts}", "keys", parts)
        find = exact_substrings.find_repeated_anchors
        work = functools.partial(_work_on_parts, find, keys, repeated, parts)
        records = self.do(f"repeated-{parts}", work, _number_tasks(parts)).read_results(
            _number_tasks(parts)
        )
        copies = sum_counts(record.counts for record in records)["copies"]
        partitions = exact_substrings.choose_partition_count(copies, settings)
        self._run_on_splits(f"pieces-{partitions}", _gather_pieces, settings, repeated, partitions)
        pieces = self._list_files("pieces", "pieces")
        repeats = self._name_parts("repeats", "spans", partitions)
        work = functools.partial(
            _work_on_parts, exact_substrings.find_repeats, pieces, repeats, settings
        )
        self.do(f"repeats-{partitions}", work, _number_tasks(partitions))
        nth = {split.name: number for number, split in enumerate(self.splits)}
        return self._run_on_splits("cut-substrings", _cut_substrings, repeats, nth)

    def _remove_benchmarks(self, settings: Decontamination) -> dict[str, Any]:
        index = self.path_of(BENCHMARKS_INDEX)
        self.do(
            "benchmarks",
            functools.partial(benchmark_removal.index_benchmarks, settings, index),
            [Split("all", {})],
        )
        self._run_on_splits("matches", benchmark_removal.match_documents, index)
        paths = self._list_files("matches", "npz")
        totals = self.path_of(BENCHMARKS_TOTALS)
        self.do(
            "matched",
            functools.partial(benchmark_removal.merge_matches, index, paths, totals),
            [Split("all", {})],
        )
        return self._run_on_splits("decontaminate", benchmark_removal.decontaminate, index, totals)

    def _run_on_splits(self, name: str, make: Callable[..., Work], *more: Any) -> dict[str, Any]:
        """Run a pass over all splits and return the counts of each split."""
        phase = self.do(name, functools.partial(make, self.surviving, *more), self.splits)
        return {record.name: record.counts for record in phase.read_results(self.splits)}

    def _list_files(self, folder: str, ending: str) -> list[str]:
        return [self.path_of(folder, f"{split.name}.{ending}") for split in self.splits]

    def _name_parts(self, folder: str, ending: str, parts: int) -> list[str]:
        """Return the paths of the results of `parts` parts.

        A folder of ranges carries their number: a run that is resumed with another `memory` has
        other ranges, and may be resumed with the first one again.
        """
        return [self.path_of(folder, f"{part:05d}.{ending}") for part in range(parts)]


def _number_tasks(tasks: int) -> list[Split]:
    return [Split(f"{number:05d}", {"number": number}) for number in range(tasks)]


def _work_on_parts(
    find: Callable[..., dict[str, Any]], paths: Sequence[str], results: Sequence[str], *more: Any
) -> Work:
    """Return the work that calls `find` for a part of the files at `paths`.

    `results` are the paths of the results of all parts.
    """

    def work(task: Task) -> Done:
        part = task["number"]
        return find(paths, part, *more, results[part]), {}

    return work


def _number_documents(
    split_indexes: Sequence[SplitIndex], rule: KeepRule, path_of: PathBuilder
) -> Work:
    """Return the work that numbers all surviving documents in the keep order.

    It takes 40 bytes of memory per document.
    """

    def number(task: Task) -> Done:
        ranks = [np.empty(0, np.uint64)]
        ids = [np.empty((0, 2), np.uint64)]
        counts = []
        for split_index in split_indexes:
            survives = (
                DedupDecisions.load(path_of("decided", f"{split_index.name}.npz")).kinds == KEPT
            )
            documents = Documents.load(split_index, rule)
            ranks.append(documents.ranks[survives])
            ids.append(documents.ids[survives])
            counts.append(int(survives.sum()))
        first, second = np.concatenate(ids).T
        order = np.lexsort((second, first, np.concatenate(ranks)))
        numbers = np.empty(len(order), np.int64)
        numbers[order] = np.arange(len(order))
        for split_index, own in zip(
            split_indexes, np.split(numbers, np.cumsum(counts)[:-1]), strict=True
        ):
            save_arrays(path_of("numbers", f"{split_index.name}.npz"), {"numbers": own})
        return {"documents": len(order)}, {}

    return number


def _count_line_keys(
    surviving: SurvivingDocuments, settings: common_lines.CommonLines, sources: Sequence[str]
) -> Work:
    def count(task: Task) -> Done:
        name = task["name"]
        batches = surviving.select(task).read_numbered(common_lines.COMMON_LINES, name)
        path = surviving.path_of("lines", f"{name}.keys")
        source = sources[task["source"]]
        return common_lines.count_lines(batches, settings, path, source), {}

    return count


def _cut_lines(
    surviving: SurvivingDocuments,
    settings: common_lines.CommonLines,
    sources: Sequence[str],
    common: Sequence[str],
) -> Work:
    def cut_split(task: Task) -> Done:
        name = task["name"]
        batches = surviving.select(task).read_numbered(common_lines.COMMON_LINES, name)
        path = surviving.name_spans_file(common_lines.COMMON_LINES, name)
        source = sources[task["source"]]
        return common_lines.cut_lines(batches, common, settings, path, source), {}

    return cut_split


def _count_anchors(
    surviving: SurvivingDocuments, settings: exact_substrings.ExactSubstrings
) -> Work:
    def count(task: Task) -> Done:
        name = task["name"]
        batches = surviving.select(task).iterate_texts_before(
            exact_substrings.EXACT_SUBSTRINGS, name
        )
        return exact_substrings.count_anchors(
            batches, settings, surviving.path_of("anchors", f"{name}.keys")
        ), {}

    return count


def _gather_pieces(
    surviving: SurvivingDocuments,
    settings: exact_substrings.ExactSubstrings,
    repeated: Sequence[str],
    partitions: int,
) -> Work:
    def gather(task: Task) -> Done:
        name = task["name"]
        batches = surviving.select(task).read_numbered(exact_substrings.EXACT_SUBSTRINGS, name)
        path = surviving.path_of("pieces", f"{name}.pieces")
        return exact_substrings.gather_pieces(batches, repeated, partitions, settings, path), {}

    return gather


def _cut_substrings(
    surviving: SurvivingDocuments, repeats: Sequence[str], nth: Mapping[str, int]
) -> Work:
    def cut_split(task: Task) -> Done:
        name = task["name"]
        counts = exact_substrings.cut_substrings(
            surviving.select(task).iterate_texts_before(exact_substrings.EXACT_SUBSTRINGS, name),
            repeats,
            nth[name],
            surviving.name_spans_file(exact_substrings.EXACT_SUBSTRINGS, name),
            surviving.path_of("passages", f"{name}.keys"),
        )
        return counts, {}

    return cut_split
