"""Second pass of curation: apply each source's rules to the stored columns of its splits.

A run stops when a rule or a later step removes nearly all of a source, because then either the step
or the source is usually wrong.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from trainrig import storage
from trainrig.corpus.array_files import load_arrays, save_arrays
from trainrig.corpus.array_types import Int64s
from trainrig.corpus.curation_settings import Curation, CurationSource
from trainrig.corpus.documents import MeasuredDocuments
from trainrig.corpus.filters import rule_verdicts
from trainrig.corpus.limits import LANGUAGE, PercentileThreshold
from trainrig.corpus.models.language_model import find_cutoffs
from trainrig.corpus.operators.decision_operators import convert_to_numpy
from trainrig.corpus.report.removal_counts import CutRow
from trainrig.corpus.row_schema import DOCUMENT, build_pool_schema, list_integer_columns
from trainrig.errors import DataError
from trainrig.manifest import FileSum
from trainrig.splits import Split, Work

PathBuilder = Callable[..., str]
"""Builder of the path of a file of this decision, from its folder names and file name."""


def list_source_rules(run: Curation, source: CurationSource) -> tuple[rule_verdicts.Rule, ...]:
    """Return the rules that apply to documents of `source`, in order."""
    return rule_verdicts.list_rules((*source.filters, run.pii))


def list_deciding_columns(run: Curation) -> set[str]:
    """Return the names of all columns on which the decisions of `run` depend."""
    rules = {
        name
        for source in run.sources
        for name in rule_verdicts.list_columns(list_source_rules(run, source))
    }
    bucket = {run.buckets.signal} if run.buckets else set()
    return {*DOCUMENT.names, *rules, *bucket, *run.keep_rule.columns}


def find_thresholds(
    run: Curation, pool: MeasuredDocuments, splits: Sequence[Split]
) -> dict[str, rule_verdicts.Thresholds]:
    """Return, by source, the thresholds that are percentiles of the source's own documents.

    Only the columns that these rules use are read.
    """
    found: dict[str, rule_verdicts.Thresholds] = {}
    for index, source in enumerate(run.sources):
        rules = rule_verdicts.select_unbound(list_source_rules(run, source))
        if rules:
            names = sorted({LANGUAGE}.union(*(rule.columns for rule in rules)))
            chunks = (
                chunk
                for split in splits
                if split.task["source"] == index
                for chunk in pool.iterate_chunks(split.name, names)
            )
            table = _concatenate(run, names, chunks)
            columns = {name: convert_to_numpy(table[name]) for name in names}
            found[source.name] = {
                rule.name: rule.limit.resolve(columns)
                for rule in rules
                if isinstance(rule.limit, PercentileThreshold)
            }
    return found


def find_bucket_thresholds(
    run: Curation, pool: MeasuredDocuments, splits: Sequence[Split]
) -> dict[str, tuple[float, float]]:
    """Return, by language, the thresholds that end the head and middle buckets.

    They are computed over the documents of all sources.
    """
    if run.buckets is None:
        return {}
    names = [LANGUAGE, run.buckets.signal]
    chunks = (chunk for split in splits for chunk in pool.iterate_chunks(split.name, names))
    table = _concatenate(run, names, chunks)
    languages = convert_to_numpy(table[LANGUAGE]).tolist()
    values = convert_to_numpy(table[run.buckets.signal]).astype(np.float64)
    return find_cutoffs(values, languages, run.buckets.shares)


def apply_rules_to_split(run: Curation, pool: MeasuredDocuments, path_of: PathBuilder) -> Work:
    """Return the work of this pass: find the first rule each document breaks, and tally them."""
    thresholds = json.loads(storage.read(path_of("cuts.json")))
    integers = list_integer_columns(run)

    def judge(task: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, FileSum]]:
        source = run.sources[task["source"]]
        rules = rule_verdicts.bind_rules(
            list_source_rules(run, source), thresholds.get(source.name, {})
        )
        names = rule_verdicts.list_columns(rules)
        chunks = pool.select(task).iterate_chunks(task["name"], names)
        table = _concatenate(run, names, chunks)
        columns = {name: convert_to_numpy(table[name]) for name in names}
        verdicts = rule_verdicts.decide(rules, columns, len(table))
        save_arrays(path_of("verdicts", f"{task['name']}.npz"), {"first": verdicts.first})
        by_source = {source.name: rule_verdicts.tally(verdicts, columns)}
        histograms = rule_verdicts.build_histograms(verdicts, columns, integers)
        return {"tally": by_source, "histograms": {source.name: histograms}}, {}

    return judge


def _concatenate(run: Curation, names: Sequence[str], chunks: Iterable[pa.Table]) -> pa.Table:
    """Return the chunks as one table, with all its columns even if the split has no document."""
    empty = build_pool_schema(run).empty_table().select(list(names))
    return pa.concat_tables([empty, *chunks])


def read_first_broken(path_of: PathBuilder, split: str) -> Int64s:
    """Return the index of the first rule each document of the split breaks, or -1."""
    return load_arrays(path_of("verdicts", f"{split}.npz"))["first"]


def read_verdicts(
    pool: MeasuredDocuments, path_of: PathBuilder, split: str, columns: Sequence[str]
) -> Iterator[tuple[pa.Table, Int64s]]:
    """Yield the rows of a split in chunks, with the index of the first rule each row breaks."""
    first = read_first_broken(path_of, split)
    at = 0
    for rows in pool.iterate_chunks(split, columns):
        yield rows, first[at : at + len(rows)]
        at += len(rows)


def refuse_rules_that_wipe_out(run: Curation, tallies: Mapping[str, Any]) -> None:
    """Raise DataError if a rule drops nearly all documents of a source.

    `tallies` holds the counts of documents by source and rule.
    """
    for name, source_tally in tallies.items():
        seen = sum(counts["documents"] for counts in source_tally["seen"].values())
        dropped = {
            rule: sum(counts.get("first_documents", 0) for counts in languages.values())
            for rule, languages in source_tally["rules"].items()
        }
        refuse_wiped_out(run, name, dropped, seen)


def refuse_wiped_out(run: Curation, name: str, dropped: Mapping[str, int], documents: int) -> None:
    """Raise DataError if a step drops nearly all `documents` of source `name` that reach it.

    `dropped` holds the number of documents dropped by each step, in order.
    """
    (source,) = (source for source in run.sources if source.name == name)
    limit = source.wipe_out
    found = rule_verdicts.find_wiped_out(dropped, documents, limit.max_share, limit.min_documents)
    if found:
        step, number, reached = found
        raise DataError(
            f"{run.output}: {step} drops {number:,} of the {reached:,} "
            f"documents of source '{name}' that reach it, more than {limit.max_share:.0%} "
            "(sources.wipe_out.max_share); change the rule or raise the limit and run again, "
            "which reads no page again"
        )


def refuse_cut_away(run: Curation, rows: Iterable[CutRow]) -> None:
    """Raise DataError if a step removes nearly all text of a source."""
    sources = {source.name: source for source in run.sources}
    for row in rows:
        limit = sources[row.source].wipe_out
        if row.documents >= limit.min_documents and row.size_cut > limit.max_share * row.size:
            raise DataError(
                f"{run.output}: {row.step} removes {row.size_cut:,} of the {row.size:,} "
                f"{row.unit} of source '{row.source}' that reach it, more than "
                f"{limit.max_share:.0%} (sources.wipe_out.max_share); change its section or "
                "raise the limit and run again, which reads no page again"
            )
