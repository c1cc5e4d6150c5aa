"""Operators on pages: extraction of their texts, and signals of their URLs."""

import atexit
import functools
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from trainrig.config.table_operator import TableOperator, put_column, read_strings
from trainrig.corpus.documents import compute_document_id
from trainrig.corpus.extract import (
    Extracted,
    Extractor,
    MainContent,
    NotExtracted,
    finds_page_kind,
    reads_permissions,
)
from trainrig.corpus.extract.guard import Guard
from trainrig.corpus.extract.page_kinds import KindOfPage
from trainrig.corpus.extract.page_permissions import ROBOTS_REFUSALS, PagePermissions
from trainrig.corpus.operators.page_tables import PAGE_ALONE, list_pages
from trainrig.corpus.read import RawPage
from trainrig.corpus.row_schema import DOCUMENT, PAGE_KIND, PERMISSIONS
from trainrig.corpus.url_blocklist import URL_COLUMNS, UrlLists, UrlSignals

ExtractTexts = Callable[[Iterable[RawPage]], Iterable[Extracted | NotExtracted]]
"""Function that extracts the text of pages, with one outcome per page, in order."""

_SOURCE = "pages"  # source of pages whose table has no column for it


@dataclass(frozen=True)
class ExtractedPages:
    """Columns of the documents of some pages, and the reasons why other pages gave none."""

    columns: dict[str, pa.Array]
    taken: list[int]  # indexes of the pages that gave a document
    failed: dict[int, NotExtracted]  # key: index of the page


def extract_documents(
    sources: Sequence[str],
    pages: Sequence[RawPage],
    extract: ExtractTexts,
    *,
    with_permissions: bool,
    with_page_kinds: bool,
) -> ExtractedPages:
    """Extract `pages`, which come from `sources`, one for each page.

    `with_permissions` and `with_page_kinds` say whether `extract` reads permissions and finds kinds
    of pages. Then the result has their columns, even without documents.
    """
    taken: list[int] = []
    failed: dict[int, NotExtracted] = {}
    columns: dict[str, list[Any]] = {
        name: [] for name in ("id", "url", "text", "source", "date", "metadata", "extracted_share")
    }
    permissions: list[PagePermissions] = []
    page_kinds: list[KindOfPage] = []
    outcomes = zip(sources, pages, extract(pages), strict=True)
    for index, (source, page, outcome) in enumerate(outcomes):
        if isinstance(outcome, NotExtracted):
            failed[index] = outcome
            continue
        taken.append(index)
        columns["id"].append(compute_document_id(source, page.url, page.body))
        columns["url"].append(page.url)
        columns["text"].append(outcome.text)
        columns["source"].append(source)
        columns["date"].append(page.date)
        columns["metadata"].append(_format_metadata(page, outcome))
        columns["extracted_share"].append(outcome.share)
        if outcome.permissions is not None:
            permissions.append(outcome.permissions)
        if outcome.page_kind is not None:
            page_kinds.append(outcome.page_kind)
    arrays = {name: pa.array(values, DOCUMENT.field(name).type) for name, values in columns.items()}
    if with_permissions:
        arrays |= build_permission_columns(permissions)
    if with_page_kinds:
        arrays |= build_page_kind_columns(page_kinds)
    return ExtractedPages(arrays, taken, failed)


def build_permission_columns(permissions: Sequence[PagePermissions]) -> dict[str, pa.Array]:
    """Return the columns of PERMISSIONS, with a row for each of `permissions`."""
    values: dict[str, list[Any]] = {
        name: [getattr(page, name) for page in permissions]
        for name in (
            "license",
            "license_version",
            "license_port",
            "licenses_mentioned",
            "tdm_policy",
        )
    }
    for refusal in ROBOTS_REFUSALS:
        values[refusal] = [int(refusal in page.refusals) for page in permissions]
    reservations = {True: 1, False: -1, None: 0}
    values["tdm_reservation"] = [reservations[page.tdm_reserved] for page in permissions]
    return {field.name: pa.array(values[field.name], field.type) for field in PERMISSIONS}


def build_page_kind_columns(page_kinds: Sequence[KindOfPage]) -> dict[str, pa.Array]:
    """Return the columns of PAGE_KIND, with a row for each of `page_kinds`."""
    values = {
        "page_kind": [found.kind for found in page_kinds],
        "page_kind_evidence": [found.evidence for found in page_kinds],
    }
    return {field.name: pa.array(values[field.name], field.type) for field in PAGE_KIND}


def _format_metadata(page: RawPage, extracted: Extracted) -> str:
    """Return the metadata of the page and its file, without the text, as a JSON object."""
    said = {
        **page.metadata,
        "title": extracted.title,
        "id": page.id,
        "published": extracted.date,
        "language_hint": extracted.language_hint,
    }
    told = {name: value for name, value in said.items() if value or name == "title"}
    return json.dumps(told, ensure_ascii=False)


class Extract(TableOperator):
    """Extract the texts of pages: rows of `read_pages` become rows of documents.

    Adds `id`, `text`, `metadata` and `extracted_share`, and removes the columns of the page alone,
    such as `body`. Pages that give no text are dropped, and so are records that could not be read.
    In the extractor, `permissions = true` adds columns for what pages allow, and
    `page_kind = true` adds columns for the kind of page. A child process of each worker extracts
    the pages, so a page that kills it costs only itself.
    """

    extractor: Extractor = MainContent()  # how the text of a page is extracted

    def __call__(self, rows: pa.Table) -> pa.Table:
        """Return the documents of the pages in `rows`, in the same order."""
        self.require_columns(rows, ["body"], "begin with the pages of `read_pages`")
        pages = list_pages(rows)
        sources = [_SOURCE] * len(rows)
        if "source" in rows.column_names:
            sources = read_strings(rows["source"])
        found = extract_documents(
            [sources[index] for index, _ in pages],
            [page for _, page in pages],
            _start_guard(self.extractor).extract,
            with_permissions=reads_permissions(self.extractor),
            with_page_kinds=finds_page_kind(self.extractor),
        )
        there = [name for name in rows.column_names if name not in PAGE_ALONE]
        taken = pa.array([pages[index][0] for index in found.taken], pa.int64())
        kept = rows.select(there).take(taken)
        return pa.table({**{name: kept[name] for name in there}, **found.columns})


@functools.cache
def _start_guard(extractor: Extractor) -> Guard:
    """Return the child process that extracts for this process with the settings `extractor`."""
    guard = Guard(extractor)
    atexit.register(guard.close)
    return guard


class MatchUrls(TableOperator):
    """Measure the URLs of documents against lists of domains and words.

    Adds the columns that the filter `Url` bounds. Apply it before `MaskPersonalData`, which may
    change URLs.
    """

    urls: UrlLists  # the lists

    def __call__(self, rows: pa.Table) -> pa.Table:
        """Return `rows` with the signals of their URLs."""
        self.require_columns(rows, ["url"], "add it, or leave this step out")
        found = _load_url_signals(self.urls).measure(read_strings(rows["url"]))
        for name in URL_COLUMNS:
            rows = put_column(rows, name, pa.array(found[name], pa.int64()))
        return rows


@functools.lru_cache(maxsize=1)
def _load_url_signals(lists: UrlLists) -> UrlSignals:
    """Read the block lists, once per process."""
    return UrlSignals(lists)
