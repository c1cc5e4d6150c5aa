"""First pass of curation: turn the pages of all sources into measured documents.

The files of the sources are grouped into splits. A split is read in parts, cut by the number and
bytes of records. A part is done when both its files exist. So a killed run reads a split again from
its start, which is cheap, but extracts only the pages that no finished part holds.

Pages are measured a few hundred at a time, as rows of text and signal columns. No rule is applied
here. Personal data are masked before anything else, so no signal, digest or row is computed from
them.
"""

import dataclasses
import functools
import hashlib
import json
import resource
import sys
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import pyarrow as pa
import pyarrow.parquet as pq

from trainrig import manifest, storage
from trainrig.corpus.curation_settings import Curation, CurationSource
from trainrig.corpus.documents import Parts, compute_document_id, writing
from trainrig.corpus.extract import Extracted, NotExtracted
from trainrig.corpus.extract.guard import Cause, FailedPage, Guard
from trainrig.corpus.filters.published_rules import load_datatrove
from trainrig.corpus.models.language_id import identify_all
from trainrig.corpus.read import (
    RawPage,
    Unreadable,
    cut_pieces,
    find_files,
    from_json,
    read,
    serialise_piece,
)
from trainrig.corpus.rewrite.pii_mask import PII, MaskedSpan, mask
from trainrig.corpus.row_schema import build_pool_schema
from trainrig.corpus.signals.text_arrays import build_batch
from trainrig.corpus.signals.text_signals import measure
from trainrig.corpus.url_blocklist import UrlLists, UrlSignals
from trainrig.manifest import SCRATCH, FileSum
from trainrig.splits import CRASHED, RecordSelection, Split, Work


def plan_splits(run: Curation) -> tuple[list[Split], dict[str, str]]:
    """Return the splits of all sources, and a fingerprint of each source's input.

    A split is a group of pieces of files; splits have about the same size. Raises DataError if a
    pattern matches no file, or if a file has an unknown format.
    """
    lists = storage.compute_content_keys(run.urls.list_files())
    splits: list[Split] = []
    inputs = {"urls": manifest.digest(lists)} if lists else {}
    for scorer in run.scorers:
        inputs[f"scorer {scorer.column}"] = manifest.digest(scorer.read_content_keys())
    for index, source in enumerate(run.sources):
        files = find_files(source.paths)
        keys = storage.compute_content_keys([file.path for file in files])
        named_keys = zip([file.name for file in files], keys, strict=True)
        inputs[source.name] = manifest.digest(list(named_keys))
        for number, group in enumerate(cut_pieces(files, source.reading)):
            name = f"{source.name}-{number:05d}"
            task = {
                "name": name,
                "source": index,
                "pieces": [serialise_piece(piece) for piece in group],
            }
            splits.append(Split(name, task))
    return splits, inputs


@dataclass(frozen=True)
class MeasuredPages:
    """Result of measuring pages: rows, and the reasons why some pages gave none."""

    rows: pa.Table  # columns as in `build_pool_schema`
    quarantined: dict[int, dict[str, str]]  # "where" and "reason", by page number


Extract = Callable[[Iterable[RawPage]], Iterable[Extracted | NotExtracted]]
"""Function that extracts the text of pages, with one outcome per page, in order."""


def measure_pages(
    run: Curation, source: CurationSource, pages: Sequence[tuple[int, RawPage]], extract: Extract
) -> MeasuredPages:
    """Measure `pages`, given as (number, page), and return their rows in the same order."""
    numbers: list[int] = []
    taken: list[tuple[RawPage, Extracted]] = []
    quarantined = {}
    outcomes = extract([page for _, page in pages])
    for (number, page), extracted in zip(pages, outcomes, strict=True):
        if isinstance(extracted, NotExtracted):
            where = mask_url(page.url, run.pii)
            quarantined[number] = {"where": where, "reason": extracted.reason}
        else:
            numbers.append(number)
            taken.append((page, extracted))
    written, counts = _rewrite(source, [extracted.text for _, extracted in taken])
    masked = [mask(text, run.pii) for text in written]
    texts = [text for text, _ in masked]
    batch = build_batch(texts)
    languages, language_scores = identify_all(texts, batch)
    columns: dict[str, Any] = {
        "id": [compute_document_id(source.name, page.url, page.body) for page, _ in taken],
        "url": [mask_url(page.url, run.pii) for page, _ in taken],
        "text": texts,
        "source": [source.name] * len(taken),
        "language": languages,
        "date": [page.date for page, _ in taken],
        "metadata": [_format_metadata(page, extracted, run.pii) for page, extracted in taken],
        "row": numbers,
        "bytes": [len(text.encode()) for text in texts],
        "language_score": language_scores,
        "extracted_share": [extracted.share for _, extracted in taken],
        "pii": [_list_places(spans) for _, spans in masked],
        "pii_finds": [len(spans) for _, spans in masked],
    }
    columns |= measure(texts, languages, batch)
    if run.needs_datatrove:
        columns |= load_datatrove().measure_datatrove(texts)
    if run.urls != UrlLists():
        columns |= _load_url_signals(run.urls).measure([page.url for page, _ in taken])
    columns |= {scorer.column: scorer.score(texts, languages) for scorer in run.scorers}
    schema = build_pool_schema(run)
    columns |= {name: counts.get(name) for name in schema.names if name not in columns}
    nothing = [None] * len(taken)
    columns = {name: nothing if values is None else values for name, values in columns.items()}
    return MeasuredPages(pa.table(columns, schema), quarantined)


@functools.lru_cache(maxsize=1)
def _load_url_signals(lists: UrlLists) -> UrlSignals:
    """Read the block lists, once per process."""
    return UrlSignals(lists)


def _rewrite(
    source: CurationSource, texts: Sequence[str]
) -> tuple[list[str], dict[str, list[int]]]:
    """Return the texts after all rewrites of `source`, and the number of changes, by column."""
    counts: dict[str, list[int]] = {}
    if not source.rewrites:
        return list(texts), counts
    languages, _ = identify_all(texts)
    for rewrite in source.rewrites:
        changed = [rewrite.apply(text, code) for text, code in zip(texts, languages, strict=True)]
        texts = [text for text, _ in changed]
        counts |= {name: [found[name] for _, found in changed] for name in rewrite.columns}
    return list(texts), counts


def _format_metadata(page: RawPage, extracted: Extracted, pii: PII) -> str:
    """Return the metadata of the page and its file, without the text, as a JSON object."""
    said = {
        **page.metadata,
        "title": extracted.title,
        "id": page.id,
        "published": extracted.date,
        "language_hint": extracted.language_hint,
    }
    told = {name: mask(value, pii)[0] for name, value in said.items() if value or name == "title"}
    return json.dumps(told, ensure_ascii=False)


def _list_places(spans: Sequence[MaskedSpan]) -> list[dict[str, Any]]:
    return [{"kind": span.kind, "start": span.start, "length": span.length} for span in spans]


def mask_url(url: str, pii: PII) -> str:
    """Return `url` with personal data masked; IP addresses stay, as they name hosts, not people."""
    kinds = tuple(kind for kind in pii.kinds if kind != "IP")
    return mask(url, pii.model_copy(update={"kinds": kinds}))[0]


PART = 500  # records of a part: some seconds of work for one core, and some tens of MB in memory
PART_BYTES = 64 * 2**20  # bytes of page bodies in a part
CAUSES = frozenset(get_args(Cause))
_RSS_UNIT = 1 if sys.platform == "darwin" else 1024  # unit of getrusage's maximum, in bytes

Record = RawPage | Unreadable


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


def split_records(records: Iterable[Record]) -> Iterator[list[Record]]:
    """Split `records` into parts that depend on the records alone, so a resumed run cuts alike.

    A record that is left out counts with its size, because parts may have been cut before that.
    """
    part: list[Record] = []
    size = 0
    for record in records:
        part.append(record)
        size += len(record.body) if isinstance(record, RawPage) else record.left_out
        if len(part) == PART or size >= PART_BYTES:
            yield part
            part = []
            size = 0
    if part:
        yield part


class _Extractors:
    """Child processes that extract pages, one per source, and records of the pages that crash them.

    Pages that crash a child are recorded at once, so a resumed run does not try them again.
    """

    def __init__(self, run: Curation) -> None:
        self._folder = storage.join(run.output, SCRATCH, "failed-pages")
        self._guards: dict[str, Guard] = {}
        self._recorded: set[str] = set()  # locations of the records that were read or written
        weakref.finalize(self, _close, self._guards)

    def of(self, source: CurationSource) -> Extract:
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
    run: Curation, source: CurationSource, part: list[Record], first: int, extract: Extract
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
