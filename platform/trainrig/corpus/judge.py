"""One page, judged: its row of text, language, signals, masked finds, and the reason to drop it."""

import json
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
from pydantic import Field

from trainrig.config import PLACE, Settings
from trainrig.corpus.document import document_id
from trainrig.corpus.extract import Extractor, NotExtracted, Resiliparse, extract
from trainrig.corpus.filters import (
    Filter,
    GopherQuality,
    GopherRepetition,
    Language,
    Length,
    RepeatedLines,
    Symbols,
    first_broken_rule,
)
from trainrig.corpus.language import identify
from trainrig.corpus.read.warc import Page
from trainrig.corpus.rewrite.pii import PII, mask
from trainrig.corpus.signals import SIGNALS, measure

_SPAN = pa.struct([("kind", pa.string()), ("start", pa.int64()), ("length", pa.int64())])
# Of kept and of dropped documents alike.
COLUMNS = pa.schema(
    [
        *((name, pa.string()) for name in ("id", "url", "text", "source", "language", "date")),
        ("metadata", pa.string()),
        ("language_score", pa.float64()),
        *(
            (name, pa.int64() if kind == np.int64 else pa.float64())
            for name, kind in SIGNALS.items()
        ),
        ("pii", pa.list_(_SPAN)),  # places in the text before masking; never the value
        ("dropped_by", pa.string()),
        ("duplicate_of", pa.string()),  # id of the kept document that it repeats
        ("similarity", pa.float64()),  # Jaccard of the two, on their shingles
    ]
)


# What documents of prose are held to unless a run file says otherwise.
PROSE: tuple[Filter, ...] = (
    Length(),
    Language(),
    GopherRepetition(),
    GopherQuality(),
    Symbols(),
    RepeatedLines(),
)


class Source(Settings):
    """One domain of the mixture: where its pages are, and what they are held to."""

    name: str = Field(pattern=r"^[A-Za-z0-9_-]+$")
    paths: Annotated[tuple[str, ...], PLACE] = Field(min_length=1)  # WARC files; * and ? are wild
    extractor: Extractor = Resiliparse()
    filters: tuple[Filter, ...] = PROSE


def masked_url(url: str, pii: PII) -> str:
    """`url` without personal data. Addresses of hosts stay: they say where, not who."""
    kinds = tuple(kind for kind in pii.kinds if kind != "IP")
    return mask(url, pii.model_copy(update={"kinds": kinds}))[0]


def judge(source: Source, pii: PII, page: Page) -> dict[str, Any] | NotExtracted:
    """The row of `page`, by COLUMNS. Whether it repeats another is for later.

    Personal data are masked first: no signal, no digest and no row ever sees them.
    """
    extracted = extract(page, source.extractor)
    if isinstance(extracted, NotExtracted):
        return extracted
    text, spans = mask(extracted.text, pii)
    language = identify(text)
    signals = measure([text], [language.code])
    guessed = {"language": np.array([language.code]), "language_score": np.array([language.score])}
    reason = first_broken_rule(source.filters, signals | guessed)[0]
    too_many = next(pii.broken_rules(spans), None)
    return {
        "id": document_id(source.name, page.url, page.body),
        "url": masked_url(page.url, pii),
        "text": text,
        "source": source.name,
        "language": language.code,
        "date": page.date,
        "metadata": json.dumps({"title": mask(extracted.title, pii)[0]}, ensure_ascii=False),
        "language_score": language.score,
        **{name: column[0].item() for name, column in signals.items()},
        "pii": [{"kind": s.kind, "start": s.start, "length": s.length} for s in spans],
        "dropped_by": reason or (f"PII.{too_many}" if too_many else None),
        "duplicate_of": None,
        "similarity": None,
    }
