"""Passes of curation that read texts again: signatures and the output; and counts of all passes."""

import dataclasses
import heapq
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trainrig import manifest, storage
from trainrig.corpus.curation_settings import Curation
from trainrig.corpus.dedup.dedup_decisions import COPIES, DedupDecisions
from trainrig.corpus.documents import DROPPED, KEPT, QUARANTINE, MeasuredDocuments, writing
from trainrig.corpus.filters.rule_verdicts import NO_LANGUAGE
from trainrig.corpus.models.language_model import assign_buckets
from trainrig.corpus.report.curation_tallies import LikePairs
from trainrig.corpus.report.host_tallies import build_host_counts
from trainrig.corpus.row_schema import (
    SITE_LINES_SHARE,
    VERDICT,
    build_pool_schema,
    build_row_schema,
)
from trainrig.corpus.signatures.signatures import Signatures
from trainrig.corpus.stages import near_duplicates, surviving_documents
from trainrig.corpus.stages.apply_rules import PathBuilder, list_source_rules, read_verdicts
from trainrig.corpus.stages.tally_sums import SAMPLES, write_tally
from trainrig.manifest import FileSum
from trainrig.splits import Work

_HOST = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://(?:[^/?#@]*@)?([^/?#:]+)")
_TOLD = ("source", "language")
_AFTER_RULES = (*COPIES, *surviving_documents.CUT_STEPS)
EXCERPT = 2000  # most characters of a sample
# columns left out of dropped documents with `keep_dropped = "signals"`
NOT_KEPT = {"text", "metadata"}


def write_signatures(run: Curation, pool: MeasuredDocuments, place: PathBuilder) -> Work:
    """Return the work of the third pass: compute signatures of the texts that passed the rules."""

    def sign(task: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, FileSum]]:
        name = task["name"]
        needed = run.keep_rule.columns
        parts = [Signatures.of([], run.near_duplicates)]
        ranking = []
        columns = ["id", "url", "text", *needed]
        for rows, first in read_verdicts(pool.select(task), place, name, columns):
            passed = rows.filter(pa.array(first < 0))
            parts.append(Signatures.from_table(passed, run.near_duplicates))
            ranking.append(passed.select(list(needed)))
        signatures = Signatures.concatenate(parts)
        return near_duplicates.save_documents(
            run, task["source"], signatures, ranking, place(), name
        ), {}

    return sign


def write_split(
    run: Curation, documents: MeasuredDocuments, place: PathBuilder, folder: str, searched: str
) -> Work:
    """Return the work of the last pass: write each document to its file below `folder`.

    `searched` is the folder of the files of the search for duplicates.
    """
    cuts = json.loads(storage.read(place("bucket_cuts.json")))
    schema = build_pool_schema(run)
    whole = build_row_schema(run)
    hidden = NOT_KEPT if run.keep_dropped == "signals" else set()
    shown = pa.schema([field for field in whole if field.name not in hidden])

    def write(task: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, FileSum]]:
        name = task["name"]
        pool = documents.select(task)
        rules = [rule.name for rule in list_source_rules(run, run.sources[task["source"]])]
        decisions = DedupDecisions.load(place("decided", f"{name}.npz")).build_verdicts()
        surviving = surviving_documents.SurvivingDocuments(
            pool, place, surviving_documents.list_removal_steps(run)
        )
        cutter = surviving_documents.SpanRemover.of(surviving, name, surviving.steps)
        if run.site_lines:
            shares = surviving_documents.SiteLinesShares.of(surviving, name)
        counts = _Counts()
        samples = _Samples()
        pairs = LikePairs(place("decided", f"{name}.npz"))
        target = {
            part: storage.join(folder, part, f"{name}.{ending}")
            for part, ending in ((KEPT, "parquet"), (DROPPED, "parquet"), (QUARANTINE, "jsonl"))
        }
        measured = set(pool.list_columns(name)) or set(schema.names)
        absent = set(schema.names) - measured
        there = [column for column in schema.names if column in measured]
        with (
            writing(target[KEPT], _drop_absent_columns(whole, absent)) as kept,
            writing(target[DROPPED], _drop_absent_columns(shown, absent)) as dropped,
        ):
            passed_before = 0
            for rows, first in read_verdicts(pool, place, name, there):
                rows, passed_before = _with_verdicts(rows, first, rules, decisions, passed_before)
                pairs.add(rows)
                if run.site_lines:
                    rows = _with_site_lines_shares(rows, shares)
                if surviving.steps:
                    rows = _with_cuts(rows, cutter)
                if run.buckets is not None:
                    rows = _with_buckets(rows, run.buckets.signal, cuts)
                survives = pc.is_null(rows["dropped_by"])
                kept.add(rows.filter(survives))
                dropped.add(rows.filter(pc.invert(survives)))
                counts.add(rows, survives)
                samples.add(rows.filter(pc.invert(survives)))
        if run.keep_dropped == "none":
            storage.delete(target.pop(DROPPED))
        lines = pool.read_quarantined(name)
        storage.write(target[QUARANTINE], lines)
        files = {f"{part}/{path.rpartition('/')[2]}": path for part, path in target.items()}
        files |= near_duplicates.keep_files(run, name, searched, place, folder)
        reasons = [json.loads(line)["reason"] for line in lines.splitlines()]
        told = {
            "samples": samples.list_lowest(),
            "pairs": pairs.to_json(),
            "counts": counts.summarise(reasons),
        }
        write_tally(place, 0, name, told, counts.build_host_table())
        sums = {below: manifest.compute_file_sum(path) for below, path in files.items()}
        return counts.build_table(reasons), sums

    return write


def _drop_absent_columns(schema: pa.Schema, absent: set[str]) -> pa.Schema:
    """Return `schema` without unmeasured columns.

    A rule that needs one of them later then fails with a missing column.
    """
    return pa.schema([field for field in schema if field.name not in absent])


def _with_verdicts(
    rows: pa.Table,
    first: np.ndarray[Any, np.dtype[np.int64]],
    rules: Sequence[str],
    decisions: Mapping[int, Mapping[str, Any]],
    passed_before: int,
) -> tuple[pa.Table, int]:
    """Add the VERDICT columns to `rows`.

    `decisions` are keyed by position among the split's documents that passed the rules. Returns the
    rows, and the number of documents of the split that have passed so far.
    """
    verdicts: list[dict[str, Any]] = []
    for index in first.tolist():
        verdict: dict[str, Any] = dict.fromkeys(VERDICT.names)
        if index >= 0:
            verdict["dropped_by"] = rules[index]
        else:
            verdict |= decisions.get(passed_before, {})
            passed_before += 1
        verdicts.append(verdict)
    added = pa.Table.from_pylist(verdicts, VERDICT)
    for field in VERDICT:
        rows = rows.append_column(field, added[field.name])
    return rows, passed_before


def _with_cuts(rows: pa.Table, cutter: surviving_documents.SpanRemover) -> pa.Table:
    """Return `rows` with spans removed from the kept texts, and documents left empty dropped."""
    columns = {name: rows[name].to_pylist() for name in ("text", "dropped_by", "cut")}
    for nth, (text, fell) in enumerate(zip(columns["text"], columns["dropped_by"], strict=True)):
        if fell is None:
            left, removed, falls_by = cutter.remove_next(text)
            if falls_by:
                columns["dropped_by"][nth] = falls_by
            elif removed:
                columns["text"][nth] = left
                columns["cut"][nth] = [dataclasses.asdict(span) for span in removed]
    for name, values in columns.items():
        place = rows.column_names.index(name)
        rows = rows.set_column(place, name, pa.array(values, rows.schema.field(name).type))
    return rows


def _with_site_lines_shares(
    rows: pa.Table, shares: surviving_documents.SiteLinesShares
) -> pa.Table:
    """Return `rows` with the share of boilerplate in each surviving text."""
    columns = rows.select(["text", "dropped_by"]).to_pydict()
    found = [
        shares.measure_next(text) if fell is None else None
        for text, fell in zip(columns["text"], columns["dropped_by"], strict=True)
    ]
    return rows.append_column(SITE_LINES_SHARE, pa.array(found, SITE_LINES_SHARE.type))


def _with_buckets(rows: pa.Table, signal: str, cuts: Mapping[str, tuple[float, float]]) -> pa.Table:
    values = rows[signal].to_numpy().astype(np.float64)
    names = assign_buckets(values, rows["language"].to_pylist(), cuts)
    column = pa.array([name or None for name in names], pa.string())
    return rows.set_column(rows.column_names.index("bucket"), "bucket", column)


class _Counts:
    """Counts of a split for its manifest and report, added up chunk by chunk."""

    def __init__(self) -> None:
        self._numbers: Counter[str] = Counter()
        self._tables: dict[str, Counter[str]] = {
            name: Counter() for name in ("kept_of", "dropped_by", "masked")
        }
        self._dropped_of: dict[str, Counter[str]] = {}
        self._hosts: Counter[tuple[str, int]] = Counter()  # key: host and extracted percentage
        self._told: dict[str, Any] = {"kept": {}, "copies": {}}

    def add(self, rows: pa.Table, survives: pa.ChunkedArray) -> None:
        kept = rows.filter(survives)
        self._numbers["documents"] += len(rows)
        self._numbers["kept"] += len(kept)
        self._numbers["bytes"] += pc.sum(pc.binary_length(kept["text"])).as_py() or 0
        self._tables["kept_of"].update(kept["source"].to_pylist())
        fell = rows.filter(pc.invert(survives)).select(["source", "dropped_by"]).to_pydict()
        self._tables["dropped_by"].update(fell["dropped_by"])
        for source, step in zip(fell["source"], fell["dropped_by"], strict=True):
            self._dropped_of.setdefault(source, Counter())[step] += 1
        sizes = pc.binary_length(rows["text"])  # sizes of the texts after removal
        told = rows.select([*_TOLD, "dropped_by"]).append_column("bytes", sizes)
        self._count_languages(told.to_pylist())
        self._count_shares(rows["url"].to_pylist(), rows["extracted_share"].to_pylist())
        for spans in rows["pii"].to_pylist():
            self._tables["masked"].update(span["kind"] for span in spans)

    def _count_shares(self, urls: Sequence[str | None], shares: Sequence[float | None]) -> None:
        """Count extracted shares in percent by host, for pages whose share is known."""
        for url, share in zip(urls, shares, strict=True):
            if share is not None:
                found = _HOST.match(url or "")
                host = found.group(1).lower() if found else "(no host)"
                self._hosts[host, round(100 * share)] += 1

    def _count_languages(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Count kept and deduplicated documents by source and language."""
        for row in rows:
            if row["dropped_by"] is None:
                place = self._told["kept"].setdefault(row["source"], {})
            elif row["dropped_by"] in _AFTER_RULES:
                steps = self._told["copies"].setdefault(row["source"], {})
                place = steps.setdefault(row["dropped_by"], {})
            else:
                continue
            there = place.setdefault(row["language"] or NO_LANGUAGE, {"documents": 0, "bytes": 0})
            there["documents"] += 1
            there["bytes"] += row["bytes"]

    def summarise(self, quarantined: Sequence[str]) -> dict[str, Any]:
        """Return the counts that the report needs in addition to the rule tallies."""
        return {**self._told, "quarantined": dict(Counter(quarantined))}

    def build_host_table(self) -> pa.Table:
        """Return the numbers of documents by host and extracted share: a table of HOST_COUNTS."""
        return build_host_counts(self._hosts)

    def build_table(self, quarantined: Sequence[str]) -> dict[str, Any]:
        return {
            "documents_in": self._numbers["documents"] + len(quarantined),
            "documents_extracted": self._numbers["documents"],
            "documents_kept": self._numbers["kept"],
            "bytes_kept": self._numbers["bytes"],
            "quarantined": dict(Counter(quarantined)),
            **{name: dict(counts) for name, counts in self._tables.items()},
            "dropped_of": {source: dict(steps) for source, steps in self._dropped_of.items()},
        }


@dataclasses.dataclass(order=True, frozen=True)
class DroppedSample:
    """A dropped document as a report shows it.

    Ids are digests, so the lowest ids are a random but reproducible sample.
    """

    id: str
    url: str
    text: str
    language: str


class _Samples:
    """Collector of the dropped documents with the lowest ids, for each reason."""

    def __init__(self) -> None:
        self._lowest: dict[str, list[DroppedSample]] = {}

    def add(self, dropped: pa.Table) -> None:
        names = ["id", "url", "text", "language", "dropped_by"]
        for row in dropped.select(names).to_pylist():
            reason = row.pop("dropped_by")
            there = self._lowest.setdefault(reason, [])
            if len(there) == SAMPLES and row["id"] > there[-1].id:
                continue
            sample = DroppedSample(**{**row, "text": (row["text"] or "")[:EXCERPT]})
            self._lowest[reason] = heapq.nsmallest(SAMPLES, [*there, sample])

    def list_lowest(self) -> dict[str, list[dict[str, str]]]:
        """Return the samples of each reason, sorted by id."""
        return {
            reason: [dataclasses.asdict(sample) for sample in there]
            for reason, there in sorted(self._lowest.items())
        }
