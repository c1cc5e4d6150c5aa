"""Arrow schemas of a document's row: the document, its signals and the verdict on it."""

import pyarrow as pa

from trainrig.corpus.curation_settings import Curation
from trainrig.corpus.extract.page_permissions import ROBOTS_REFUSALS
from trainrig.corpus.filters.published_rules import load_datatrove
from trainrig.corpus.limits import LANGUAGE_SHARE
from trainrig.corpus.signals.text_signals import SIGNALS
from trainrig.corpus.url_blocklist import URL_COLUMNS

REMOVED = pa.struct([("at", pa.int64()), ("text", pa.string()), ("by", pa.string())])
_SPAN = pa.struct([("kind", pa.string()), ("start", pa.int64()), ("length", pa.int64())])

DOCUMENT = pa.schema(
    [
        *((name, pa.string()) for name in ("id", "url", "text", "source", "language", "date")),
        ("metadata", pa.string()),  # a JSON object: title and other metadata
        ("row", pa.int64()),  # number of the record within its split
        ("bytes", pa.int64()),  # UTF-8 bytes of the text, before span removal
        ("language_score", pa.float64()),
        # Share of the main content's characters; null if the extractor does not measure it.
        ("extracted_share", pa.float64()),
        ("pii", pa.list_(_SPAN)),  # spans in the text before masking, without the values
        ("pii_finds", pa.int64()),
    ]
)
# What a page allows, in the order of `PagePermissions`; null in sources that do not read it.
PERMISSIONS = pa.schema(
    [
        *((name, pa.string()) for name in ("license", "license_version", "license_port")),
        ("licenses_mentioned", pa.string()),  # licences that the page links to, but not as its own
        *((name, pa.int64()) for name in ROBOTS_REFUSALS),  # 1: stated
        ("tdm_reservation", pa.int64()),  # 1: reserved, -1: not reserved, 0: not stated
        ("tdm_policy", pa.string()),
    ]
)
# The kind of a page, and what tells it; null in sources that do not find it.
PAGE_KIND = pa.schema([("page_kind", pa.string()), ("page_kind_evidence", pa.string())])
VERDICT = pa.schema(
    [
        ("bucket", pa.string()),  # "head", "middle" or "tail", if `buckets` is set
        ("dropped_by", pa.string()),
        ("duplicate_of", pa.string()),  # id of the kept document that this one duplicates
        ("similarity", pa.float64()),  # Jaccard similarity of the shingles of the two
        ("cut", pa.list_(REMOVED)),  # removed spans, by position in the original text; null: none
        # lowest id of all near-duplicates linked with each other, kept and dropped
        ("cluster", pa.string()),
    ]
)
# Share of the characters of a document that reached the removal steps that are lines of its site;
# null in documents dropped before. Only in runs with `[site_lines]`.
SITE_LINES_SHARE = pa.field("site_lines_share", pa.float64())


def build_pool_schema(run: Curation) -> pa.Schema:
    """Return the columns that reading stores for each document of `run`."""
    kinds = {**SIGNALS, **(load_datatrove().DATATROVE_SIGNALS if run.needs_datatrove else {})}
    signals = [pa.field(name, pa.from_numpy_dtype(kind)) for name, kind in kinds.items()]
    scores = [pa.field(scorer.column, pa.float64()) for scorer in run.scorers]  # NaN: no score
    rewrites = [
        pa.field(name, pa.int64())  # null in sources without the rewrite
        for name in dict.fromkeys(
            name
            for source in run.sources
            for rewrite in source.rewrites
            for name in rewrite.columns
        )
    ]
    reads_permissions = any(source.reads_permissions for source in run.sources)
    permissions = list(PERMISSIONS) if reads_permissions else []
    finds_page_kind = any(source.finds_page_kind for source in run.sources)
    page_kinds = list(PAGE_KIND) if finds_page_kind else []
    languages = [pa.field(LANGUAGE_SHARE, pa.float64())] if run.language.paragraphs else []
    urls = [pa.field(name, pa.int64()) for name in URL_COLUMNS if name in run.measured]
    return pa.schema(
        [*DOCUMENT, *permissions, *page_kinds, *languages, *signals, *urls, *rewrites, *scores]
    )


def list_integer_columns(run: Curation) -> frozenset[str]:
    """Return the names of the stored columns whose values are integers or null."""
    return frozenset(
        column.name for column in build_pool_schema(run) if pa.types.is_integer(column.type)
    )


def build_row_schema(run: Curation) -> pa.Schema:
    """Return the columns of a kept document of `run`."""
    site_lines = [SITE_LINES_SHARE] if run.site_lines else []
    return pa.schema([*build_pool_schema(run), *VERDICT, *site_lines])
