"""The second pass of curation: the stored columns of each split against the rules of its source."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from trainrig import storage
from trainrig.corpus.files.arrays import load_arrays, save_arrays
from trainrig.corpus.files.measured_documents import MeasuredDocuments
from trainrig.corpus.filters.percentile_threshold import PercentileThreshold
from trainrig.corpus.filters.rule_verdicts import (
    Rule,
    Thresholds,
    bind_rules,
    build_histograms,
    decide,
    list_columns,
    list_rules,
    select_unbound,
    tally,
)
from trainrig.corpus.limits import LANGUAGE
from trainrig.corpus.models.perplexity import find_cutoffs
from trainrig.corpus.row_schema import DOCUMENT, build_pool_schema
from trainrig.corpus.run_file import Curation, CurationSource
from trainrig.manifest import FileSum
from trainrig.splits import Split, Work

PathBuilder = Callable[..., str]
"""The location of a file of this decision, by the names of its folders and its own."""


def list_source_rules(run: Curation, source: CurationSource) -> tuple[Rule, ...]:
    """What the documents of `source` are held to, in order."""
    return list_rules((*source.filters, run.pii))


def list_deciding_columns(run: Curation) -> set[str]:
    """The columns that what becomes of the documents of `run` depends on."""
    rules = {
        name for source in run.sources for name in list_columns(list_source_rules(run, source))
    }
    bucket = {run.buckets.signal} if run.buckets else set()
    return {*DOCUMENT.names, *rules, *bucket, *run.keep_rule.columns}


def find_thresholds(
    run: Curation, pool: MeasuredDocuments, splits: Sequence[Split]
) -> dict[str, Thresholds]:
    """Source → where the cuts fall that its documents themselves set; reads those columns alone."""
    found: dict[str, Thresholds] = {}
    for index, source in enumerate(run.sources):
        rules = select_unbound(list_source_rules(run, source))
        if rules:
            names = sorted({LANGUAGE, *(rule.limit.signal for rule in rules)})
            chunks = (
                chunk
                for split in splits
                if split.task["source"] == index
                for chunk in pool.iterate_chunks(split.name, names)
            )
            table = _concatenate(run, names, chunks)
            columns = {name: as_numpy(table[name]) for name in names}
            found[source.name] = {
                rule.name: rule.limit.resolve(columns)
                for rule in rules
                if isinstance(rule.limit, PercentileThreshold)
            }
    return found


def find_bucket_thresholds(
    run: Curation, pool: MeasuredDocuments, splits: Sequence[Split]
) -> dict[str, tuple[float, float]]:
    """Language → where head and middle end, over the documents of all sources."""
    if run.buckets is None:
        return {}
    names = [LANGUAGE, run.buckets.signal]
    chunks = (chunk for each in splits for chunk in pool.iterate_chunks(each.name, names))
    table = _concatenate(run, names, chunks)
    languages = as_numpy(table[LANGUAGE]).tolist()
    values = as_numpy(table[run.buckets.signal]).astype(np.float64)
    return find_cutoffs(values, languages, run.buckets.shares)


def apply_rules_to_split(run: Curation, pool: MeasuredDocuments, path_of: PathBuilder) -> Work:
    """The work of the pass: which rule each document breaks first, and the tallies."""
    thresholds = json.loads(storage.read(path_of("cuts.json")))

    def judge(task: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, FileSum]]:
        source = run.sources[task["source"]]
        rules = bind_rules(list_source_rules(run, source), thresholds.get(source.name, {}))
        names = list_columns(rules)
        table = _concatenate(run, names, pool.iterate_chunks(task["name"], names))
        columns = {name: as_numpy(table[name]) for name in names}
        verdicts = decide(rules, columns, len(table))
        save_arrays(path_of("verdicts", f"{task['name']}.npz"), {"first": verdicts.first})
        by_source = {source.name: tally(verdicts, columns)}
        return {
            "tally": by_source,
            "histograms": {source.name: build_histograms(verdicts, columns)},
        }, {}

    return judge


def _concatenate(run: Curation, names: Sequence[str], chunks: Iterable[pa.Table]) -> pa.Table:
    """The chunks as one table, which has its columns even if a split has no document."""
    empty = build_pool_schema(run).empty_table().select(list(names))
    return pa.concat_tables([empty, *chunks])


def as_numpy(column: pa.ChunkedArray) -> NDArray[Any]:
    """A column of numbers, or of texts as Python strings; null is NaN or the empty text."""
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return np.array([value or "" for value in column.to_pylist()], dtype=np.str_)
    return column.to_numpy()  # type: ignore[no-any-return]


def read_first_broken(path_of: PathBuilder, split: str) -> NDArray[np.int64]:
    """[documents of the split] the index of the first rule broken, or -1."""
    return load_arrays(path_of("verdicts", f"{split}.npz"))["first"]


def read_verdicts(
    pool: MeasuredDocuments, path_of: PathBuilder, split: str, columns: Sequence[str]
) -> Iterator[tuple[pa.Table, NDArray[np.int64]]]:
    """The rows of a split, chunk by chunk, each with the first rules that they break."""
    first, at = read_first_broken(path_of, split), 0
    for rows in pool.iterate_chunks(split, columns):
        yield rows, first[at : at + len(rows)]
        at += len(rows)
