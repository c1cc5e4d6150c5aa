"""The columns of a document's row: what it is, what was measured of it, what became of it."""

import pyarrow as pa

from trainrig.corpus.datatrove_signals.names import DATATROVE_SIGNALS
from trainrig.corpus.run_file import Curation
from trainrig.corpus.signals import SIGNALS
from trainrig.corpus.urls.blocklist import URL_COLUMNS

REMOVED = pa.struct([("at", pa.int64()), ("text", pa.string()), ("by", pa.string())])
_SPAN = pa.struct([("kind", pa.string()), ("start", pa.int64()), ("length", pa.int64())])

DOCUMENT = pa.schema(
    [
        *((name, pa.string()) for name in ("id", "url", "text", "source", "language", "date")),
        ("metadata", pa.string()),  # a JSON object: title, and what else is known
        ("row", pa.int64()),  # the record's place among those read of its split
        ("bytes", pa.int64()),  # of the text in UTF-8, before anything was cut
        ("language_score", pa.float64()),
        # Of the characters of the page's main content; null where its extractor does not look.
        ("extracted_share", pa.float64()),
        ("pii", pa.list_(_SPAN)),  # places in the text before masking; never the value
        ("pii_finds", pa.int64()),
    ]
)
VERDICT = pa.schema(
    [
        ("bucket", pa.string()),  # "head", "middle" or "tail", where that was asked for
        ("dropped_by", pa.string()),
        ("duplicate_of", pa.string()),  # id of the kept document that it repeats
        ("similarity", pa.float64()),  # of the two, on their shingles
        ("cut", pa.list_(REMOVED)),  # of the text, by place in it as it was; null: nothing
        ("cluster", pa.string()),  # lowest id of all that are linked by likeness, kept and dropped
    ]
)


def build_pool_schema(run: Curation) -> pa.Schema:
    """The columns that reading leaves of each document of `run`."""
    kinds = {**SIGNALS, **(DATATROVE_SIGNALS if run.needs_datatrove else {})}
    signals = [pa.field(name, pa.from_numpy_dtype(kind)) for name, kind in kinds.items()]
    scores = [pa.field(each.column, pa.float64()) for each in run.scorers]  # NaN: it has none
    rewrites = [
        pa.field(name, pa.int64())  # null in a source that is not rewritten so
        for name in dict.fromkeys(
            name for source in run.sources for each in source.rewrites for name in each.columns
        )
    ]
    urls = [pa.field(name, pa.int64()) for name in URL_COLUMNS if name in run.measured]
    return pa.schema([*DOCUMENT, *signals, *urls, *rewrites, *scores])


def build_row_schema(run: Curation) -> pa.Schema:
    """The columns of a kept document of `run`."""
    return pa.schema([*build_pool_schema(run), *VERDICT])
