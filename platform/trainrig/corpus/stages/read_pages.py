"""First pass of curation: turn pages into measured documents, without any decision.

A split is read in parts, cut by the number and bytes of records. A part is done when both its files
exist. So a killed run reads a split again from its start, which is cheap, but extracts only the
pages that no finished part holds.
"""

import dataclasses
import hashlib
import json
import resource
import sys
import time
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, get_args

import pyarrow.parquet as pq

from trainrig import storage
from trainrig.corpus.extract import Extracted, NotExtracted
from trainrig.corpus.extract.guard import Cause, FailedPage, Guard
from trainrig.corpus.files.measured_documents import Parts
from trainrig.corpus.files.row_files import writing
from trainrig.corpus.read import RawPage, Unreadable, from_json, read
from trainrig.corpus.row_schema import build_pool_schema
from trainrig.corpus.run_file import Curation, CurationSource
from trainrig.corpus.stages.measure_signals import Extract, MeasuredPages, measure_pages
from trainrig.manifest import SCRATCH, FileSum
from trainrig.splits import Work

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
        records = (record for piece in pieces for record in read(piece, source.reading))
        for part in split_records(records):
            if not files.is_done(name, parts):
                found = _measure_part(run, source, part, first, extractors.of(source))
                with writing(files.name_page_file(name, parts), schema) as file:
                    file.add(found.rows)
                storage.write(
                    files.name_quarantine_file(name, parts), _format_lines(found.quarantined)
                )
            documents += _count_rows(files.name_page_file(name, parts))
            reasons.update(_read_reasons(files.name_quarantine_file(name, parts)))
            parts = parts + 1
            first = first + len(part)
            size += sum(len(record.body) for record in part if isinstance(record, RawPage))
        ended = time.process_time() + extractors.cpu_seconds
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _RSS_UNIT
        cost = {"cpu_seconds": ended - began, "page_bytes": size}
        counts = {"documents": documents, "quarantined": dict(reasons)}
        return {"parts": parts, "found": counts, "cost": cost, "peak_bytes": peak}, {}

    return read_split


def split_records(records: Iterable[Record]) -> Iterator[list[Record]]:
    """Split `records` into parts that depend on the records alone, so a resumed run cuts alike."""
    part: list[Record] = []
    size = 0
    for record in records:
        part.append(record)
        size += len(record.body) if isinstance(record, RawPage) else 0
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
        return [FailedPage(**json.loads(storage.read(path))) for path in paths]

    def _write_down(self, failed_pages: Iterable[FailedPage]) -> None:
        for failed_page in failed_pages:
            name = hashlib.sha256(f"{failed_page.url}\n{failed_page.sha256}".encode()).hexdigest()
            path = storage.join(self._folder, f"{name}.json")
            if not storage.exists(path):
                storage.write(path, json.dumps(dataclasses.asdict(failed_page)).encode())


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
