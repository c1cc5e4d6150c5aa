"""Measurement of pages, a few hundred at a time, as rows of text and signal columns.

No rule is applied here. Personal data are masked before anything else, so no signal, digest or row
is computed from them.
"""

import functools
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from trainrig.corpus.datatrove_signals import measure_datatrove
from trainrig.corpus.document import compute_document_id
from trainrig.corpus.extract import Extracted, NotExtracted
from trainrig.corpus.language import identify_all
from trainrig.corpus.read import RawPage
from trainrig.corpus.rewrite.pii import PII, MaskedSpan, mask
from trainrig.corpus.row_schema import build_pool_schema
from trainrig.corpus.run_file import Curation, CurationSource
from trainrig.corpus.signals import measure
from trainrig.corpus.signals.text_arrays.batch import build_batch
from trainrig.corpus.urls.blocklist import UrlLists, UrlSignals


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
        columns |= measure_datatrove(texts)
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
