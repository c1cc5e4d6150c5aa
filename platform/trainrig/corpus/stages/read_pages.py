"""First pass of curation: turn the pages of all sources into measured documents.

The files of the sources are grouped into splits. A split is read in parts, cut by the number and
bytes of records. A part is done when both its files exist. So a killed run reads a split again from
its start, which is cheap, but extracts only the pages that no finished part holds.

Pages are measured a few hundred at a time, as rows of text and signal columns. No rule is applied
here. Personal data are masked before anything else, so no signal, digest or row is computed from
them.
"""

import dataclasses
import hashlib
import json
import resource
import sys
import time
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import pyarrow as pa
import pyarrow.parquet as pq

from trainrig import manifest, storage
from trainrig.config.table_operator import TableOperator
from trainrig.corpus.curation_settings import Curation, CurationSource
from trainrig.corpus.documents import ROW, Parts, writing
from trainrig.corpus.extract import Extracted, NotExtracted
from trainrig.corpus.extract.guard import Cause, FailedPage, Guard
from trainrig.corpus.operators.page_operators import ExtractTexts, MatchUrls, extract_documents
from trainrig.corpus.operators.page_tables import Record, cut_source, split_records
from trainrig.corpus.operators.text_operators import (
    Classify,
    Language,
    MaskPersonalData,
    Measure,
    Rewrite,
    mask_url,
)
from trainrig.corpus.read import RawPage, Unreadable, from_json, read, serialise_piece
from trainrig.corpus.read.input_files import PASSED_OVER_NAMED
from trainrig.corpus.rewrite.pii_mask import PII
from trainrig.corpus.row_schema import build_pool_schema
from trainrig.corpus.url_blocklist import UrlLists
from trainrig.manifest import SCRATCH, FileSum
from trainrig.splits import CRASHED, RecordSelection, Split, Work


@dataclass(frozen=True)
class InputPlan:
    """The splits of all sources, and what is known of their files."""

    splits: list[Split]
    inputs: dict[str, str]  # fingerprint of each source's input
    # By source: the number of files of its folders that are not read, and the first names.
    passed_over: dict[str, dict[str, Any]]


def plan_splits(run: Curation) -> InputPlan:
    """Cut the files of all sources into splits.

    A split is a group of pieces of files; splits have about the same size. Raises DataError if a
    pattern matches no file, or if a file has an unknown format.
    """
    lists = storage.compute_content_keys(run.urls.list_files())
    splits: list[Split] = []
    passed_over: dict[str, dict[str, Any]] = {}
    inputs = {"urls": manifest.digest(lists)} if lists else {}
    for scorer in run.scorers:
        inputs[f"scorer {scorer.column}"] = manifest.digest(scorer.read_content_keys())
    for index, source in enumerate(run.sources):
        found, groups = cut_source(source.name, source.paths, source.reading)
        files = found.files
        if found.passed_over:
            first = [name.rpartition("/")[2] for name in found.passed_over[:PASSED_OVER_NAMED]]
            passed_over[source.name] = {"files": len(found.passed_over), "such_as": first}
        keys = storage.compute_content_keys([file.path for file in files])
        named_keys = zip([file.name for file in files], keys, strict=True)
        inputs[source.name] = manifest.digest(list(named_keys))
        for name, group in groups:
            task = {
                "name": name,
                "source": index,
                "pieces": [serialise_piece(piece) for piece in group],
            }
            splits.append(Split(name, task))
    return InputPlan(splits, inputs, passed_over)


@dataclass(frozen=True)
class MeasuredPages:
    """Result of measuring pages: rows, and the reasons why some pages gave none."""

    rows: pa.Table  # columns as in `build_pool_schema`
    quarantined: dict[int, dict[str, str]]  # "where" and "reason", by page number


def measure_pages(
    run: Curation,
    source: CurationSource,
    pages: Sequence[tuple[int, RawPage]],
    extract: ExtractTexts,
) -> MeasuredPages:
    """Measure `pages`, given as (number, page), and return their rows in the same order."""
    together = [page for _, page in pages]
    found = extract_documents(
        [source.name] * len(pages),
        together,
        extract,
        with_permissions=source.reads_permissions,
        with_page_kinds=source.finds_page_kind,
    )
    quarantined = {
        pages[index][0]: {"where": mask_url(together[index].url, run.pii), "reason": why.reason}
        for index, why in found.failed.items()
    }
    numbers = pa.array([pages[index][0] for index in found.taken], pa.int64())
    rows = pa.table({**found.columns, ROW: numbers})
    for operator in list_operators(run, source):
        rows = operator(rows)
    # Other sources may have rewrites that this one lacks.
    for field in build_pool_schema(run):
        if field.name not in rows.column_names:
            rows = rows.append_column(field, pa.nulls(len(rows), field.type))
    schema = build_pool_schema(run)
    return MeasuredPages(rows.select(schema.names).cast(schema), quarantined)


def list_operators(run: Curation, source: CurationSource) -> list[TableOperator]:
    """Return the steps that measure extracted documents of `source`, in order."""
    operators: list[TableOperator] = []
    if run.urls != UrlLists():
        operators.append(MatchUrls(urls=run.urls))
    if source.rewrites:
        operators.append(Rewrite(rewrites=source.rewrites, language_model=run.language.model))
    operators += [
        MaskPersonalData(kinds=run.pii.kinds, pseudonyms=run.pii.pseudonyms),
        Language(model=run.language.model, paragraphs=run.language.paragraphs),
        Measure(datatrove=run.needs_datatrove),
    ]
    if run.scorers:
        operators.append(Classify(scorers=run.scorers))
    return operators


CAUSES = frozenset(get_args(Cause))
_RSS_UNIT = 1 if sys.platform == "darwin" else 1024  # unit of getrusage's maximum, in bytes


def read_all_pages(run: Curation) -> Work:
    """Return the work of this pass: read, extract and measure the pages of a split."""
    schema = build_pool_schema(run)
    files = Parts(run.output, {})
    extractors = _Extractors(run)

    def read_split(task: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, FileSum]]:
        name = task["name"]
        source = run.sources[task["source"]]
        parts = first = size = documents = 0
        reasons: Counter[str] = Counter()
        began = time.process_time() + extractors.cpu_seconds
        pieces = [from_json(piece) for piece in task["pieces"]]
        selection = RecordSelection(task)
        in_order = (record for piece in pieces for record in read(piece, source.reading))
        records = (
            _leave_out(record, run.pii) if crashed else record
            for record, crashed in selection.choose(in_order)
        )
        if selection.probing:
            for part in split_records(records):
                _measure_part(run, source, part, 0, extractors.of(source))
            return selection.build_probe_counts(), {}
        resumed = True  # parts are written in order, so all after a missing one are missing
        for part in split_records(records):
            resumed = resumed and files.is_done(name, parts)
            if resumed:
                documents += _count_rows(files.name_page_file(name, parts))
                reasons.update(_read_reasons(files.name_quarantine_file(name, parts)))
            else:
                found = _measure_part(run, source, part, first, extractors.of(source))
                with writing(files.name_page_file(name, parts), schema) as file:
                    file.add(found.rows)
                storage.write(
                    files.name_quarantine_file(name, parts), _format_lines(found.quarantined)
                )
                documents += len(found.rows)
                reasons.update(record["reason"] for record in found.quarantined.values())
            parts = parts + 1
            first = first + len(part)
            size += sum(len(record.body) for record in part if isinstance(record, RawPage))
        ended = time.process_time() + extractors.cpu_seconds
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _RSS_UNIT
        cost = {"cpu_seconds": ended - began, "page_bytes": size}
        counts = {"documents": documents, "quarantined": dict(reasons)}
        return {"parts": parts, "found": counts, "cost": cost, "peak_bytes": peak}, {}

    return read_split


def _leave_out(record: Record, pii: PII) -> Record:
    """Return the quarantined form of a record that kills its process."""
    if isinstance(record, Unreadable):
        return record
    return Unreadable(mask_url(record.url, pii), CRASHED, left_out=len(record.body))


class _Extractors:
    """Child processes that extract pages, one per source, and records of the pages that crash them.

    Pages that crash a child are recorded at once, so a resumed run does not try them again.
    """

    def __init__(self, run: Curation) -> None:
        self._folder = storage.join(run.output, SCRATCH, "failed-pages")
        self._guards: dict[str, Guard] = {}
        self._recorded: set[str] = set()  # locations of the records that were read or written
        weakref.finalize(self, _close, self._guards)

    def of(self, source: CurationSource) -> ExtractTexts:
        """Return the function that extracts pages of `source` in its child process."""

        def extract(pages: Iterable[RawPage]) -> Iterator[Extracted | NotExtracted]:
            for outcome in guard.extract(pages):
                if isinstance(outcome, NotExtracted) and outcome.reason in CAUSES:
                    self._write_down(guard.failed_pages)
                yield outcome

        if source.name not in self._guards:
            self._guards[source.name] = Guard(source.extractor, self._read_failed_pages())
        guard = self._guards[source.name]
        return extract

    @property
    def cpu_seconds(self) -> float:
        """CPU seconds used by all living child processes."""
        return sum(guard.cpu_seconds for guard in self._guards.values())

    def _read_failed_pages(self) -> list[FailedPage]:
        paths = storage.list_files(self._folder, ".json")
        self._recorded.update(paths)
        return [FailedPage(**json.loads(data)) for data in storage.read_files(paths)]

    def _write_down(self, failed_pages: Iterable[FailedPage]) -> None:
        for failed_page in failed_pages:
            name = hashlib.sha256(f"{failed_page.url}\n{failed_page.sha256}".encode()).hexdigest()
            path = storage.join(self._folder, f"{name}.json")
            if path not in self._recorded:
                storage.write(path, json.dumps(dataclasses.asdict(failed_page)).encode())
                self._recorded.add(path)


def _close(guards: Mapping[str, Guard]) -> None:
    for guard in guards.values():
        guard.close()


def _measure_part(
    run: Curation, source: CurationSource, part: list[Record], first: int, extract: ExtractTexts
) -> MeasuredPages:
    """Return the rows and quarantined records of `part`, with records numbered from `first`."""
    pages = [(first + n, record) for n, record in enumerate(part) if isinstance(record, RawPage)]
    found = measure_pages(run, source, pages, extract)
    unreadable = {
        first + n: {"where": record.where, "reason": record.reason}
        for n, record in enumerate(part)
        if isinstance(record, Unreadable)
    }
    return MeasuredPages(found.rows, dict(sorted((found.quarantined | unreadable).items())))


def _count_rows(path: str) -> int:
    with storage.open_read(path) as file:
        return int(pq.read_metadata(file).num_rows)


def _read_reasons(path: str) -> list[str]:
    return [json.loads(line)["reason"] for line in storage.read(path).splitlines()]


def _format_lines(quarantined: Mapping[int, Mapping[str, str]]) -> bytes:
    lines = (json.dumps(record, ensure_ascii=False) + "\n" for record in quarantined.values())
    return "".join(lines).encode("utf-8", "surrogatepass")
