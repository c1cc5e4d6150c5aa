"""The second pass of curation: the stored columns of each split against the rules of its source."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from trainrig import storage
from trainrig.corpus.files.arrays import load_arrays, save_arrays
from trainrig.corpus.files.measured_documents import Pool
from trainrig.corpus.filters.percentile_threshold import CutOff
from trainrig.corpus.filters.rule_verdicts import (
    Cuts,
    Rule,
    columns_of,
    decide,
    histograms,
    placed,
    rules_of,
    tally,
    unplaced,
)
from trainrig.corpus.limits import LANGUAGE
from trainrig.corpus.models.perplexity import cutoffs
from trainrig.corpus.row_schema import pool_schema
from trainrig.corpus.run_file import Curation, Source
from trainrig.manifest import FileSum
from trainrig.splits import Split, Work

Place = Callable[..., str]
"""The location of a file of this decision, by the names of its folders and its own."""


def rules_for(run: Curation, source: Source) -> tuple[Rule, ...]:
    """What the documents of `source` are held to, in order."""
    return rules_of((*source.filters, run.pii))


def cuts_of(run: Curation, pool: Pool, splits: Sequence[Split]) -> dict[str, Cuts]:
    """Source → where the cuts fall that its documents themselves set; reads those columns alone."""
    found: dict[str, Cuts] = {}
    for index, source in enumerate(run.sources):
        rules = unplaced(rules_for(run, source))
        if rules:
            names = sorted({LANGUAGE, *(rule.limit.signal for rule in rules)})
            chunks = (
                chunk
                for split in splits
                if split.task["source"] == index
                for chunk in pool.chunks(split.name, names)
            )
            table = _together(run, names, chunks)
            columns = {name: as_numpy(table[name]) for name in names}
            found[source.name] = {
                rule.name: rule.limit.place(columns)
                for rule in rules
                if isinstance(rule.limit, CutOff)
            }
    return found


def bucket_cuts_of(
    run: Curation, pool: Pool, splits: Sequence[Split]
) -> dict[str, tuple[float, float]]:
    """Language → where head and middle end, over the documents of all sources."""
    if run.buckets is None:
        return {}
    names = [LANGUAGE, run.buckets.signal]
    chunks = (chunk for each in splits for chunk in pool.chunks(each.name, names))
    table = _together(run, names, chunks)
    languages = as_numpy(table[LANGUAGE]).tolist()
    values = as_numpy(table[run.buckets.signal]).astype(np.float64)
    return cutoffs(values, languages, run.buckets.shares)


def judging(run: Curation, pool: Pool, place: Place) -> Work:
    """The work of the pass: which rule each document breaks first, and the tallies."""
    cuts = json.loads(storage.read(place("cuts.json")))

    def judge(task: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, FileSum]]:
        source = run.sources[task["source"]]
        rules = placed(rules_for(run, source), cuts.get(source.name, {}))
        names = columns_of(rules)
        table = _together(run, names, pool.chunks(task["name"], names))
        columns = {name: as_numpy(table[name]) for name in names}
        verdicts = decide(rules, columns, len(table))
        save_arrays(place("verdicts", f"{task['name']}.npz"), {"first": verdicts.first})
        by_source = {source.name: tally(verdicts, columns)}
        return {"tally": by_source, "histograms": {source.name: histograms(verdicts, columns)}}, {}

    return judge


def _together(run: Curation, names: Sequence[str], chunks: Iterable[pa.Table]) -> pa.Table:
    """The chunks as one table, which has its columns even if a split has no document."""
    empty = pool_schema(run).empty_table().select(list(names))
    return pa.concat_tables([empty, *chunks])


def as_numpy(column: pa.ChunkedArray) -> NDArray[Any]:
    """A column of numbers, or of texts as Python strings; null is NaN or the empty text."""
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return np.array([value or "" for value in column.to_pylist()], dtype=np.str_)
    return column.to_numpy()  # type: ignore[no-any-return]


def first_broken(place: Place, split: str) -> NDArray[np.int64]:
    """[documents of the split] the index of the first rule broken, or -1."""
    return load_arrays(place("verdicts", f"{split}.npz"))["first"]


def judged(
    pool: Pool, place: Place, split: str, columns: Sequence[str]
) -> Iterator[tuple[pa.Table, NDArray[np.int64]]]:
    """The rows of a split, chunk by chunk, each with the first rules that they break."""
    first, at = first_broken(place, split), 0
    for rows in pool.chunks(split, columns):
        yield rows, first[at : at + len(rows)]
        at += len(rows)
