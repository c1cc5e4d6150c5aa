"""Operators on the texts of documents: rewrites, personal data, languages, signals and scores.

`curate` measures the pages that it reads by these operators, in the order of this module.
"""

import json
from typing import get_args

import pyarrow as pa
from pydantic import Field

from trainrig.config.table_operator import TableOperator, put_column, read_strings
from trainrig.corpus.filters.published_rules import load_datatrove
from trainrig.corpus.limits import LANGUAGE_SHARE
from trainrig.corpus.models.language_id import LanguageModel, identify_all
from trainrig.corpus.models.paragraph_languages import measure_language_share
from trainrig.corpus.models.scorers import Scorer
from trainrig.corpus.rewrite import Rewrite as AnyRewrite
from trainrig.corpus.rewrite.pii_mask import PII, MaskedSpan, Pseudonyms, mask
from trainrig.corpus.rewrite.pii_views import Kind
from trainrig.corpus.row_schema import DOCUMENT
from trainrig.corpus.signals.text_arrays import build_batch
from trainrig.corpus.signals.text_signals import SIGNALS, measure

_TEXT = "name the column with the texts `text`, or apply `Extract` to pages first"


class Rewrite(TableOperator):
    """Change texts, and count the changes in the columns of each rewrite."""

    # Changes to each text, in this order.
    rewrites: tuple[AnyRewrite, ...] = Field(min_length=1)
    # How the language of a text is identified, on which some rewrites depend; see `Language`.
    language_model: LanguageModel = "blend"

    def __call__(self, rows: pa.Table) -> pa.Table:
        """Return `rows` with changed texts and the numbers of changes."""
        self.require_columns(rows, ["text"], _TEXT)
        texts = read_strings(rows["text"])
        languages, _ = identify_all(texts, model=self.language_model)
        for rewrite in self.rewrites:
            changed = [rewrite.apply(text, c) for text, c in zip(texts, languages, strict=True)]
            texts = [text for text, _ in changed]
            for name in rewrite.columns:
                counts = pa.array([found[name] for _, found in changed], pa.int64())
                rows = put_column(rows, name, counts)
        return put_column(rows, "text", pa.array(texts, pa.string()))


class MaskPersonalData(TableOperator):
    """Mask personal data in texts, in metadata, and in URLs but for IP addresses.

    Adds `pii`, the masked spans of each text without their values, and `pii_finds`, their number.
    """

    # Kinds of personal data to mask.
    kinds: tuple[Kind, ...] = get_args(Kind)
    # Whether masks are numbered, so that equal values of a document have equal masks: <EMAIL_1>.
    pseudonyms: bool = False

    def __call__(self, rows: pa.Table) -> pa.Table:
        """Return `rows` with masked strings."""
        self.require_columns(rows, ["text"], _TEXT)
        settings = PII(kinds=self.kinds, pseudonyms=self.pseudonyms)
        names = [Pseudonyms() for _ in range(len(rows))]  # a row's URL is numbered with its text
        texts = zip(read_strings(rows["text"]), names, strict=True)
        masked = [mask(text, settings, pseudonyms=of_row) for text, of_row in texts]
        rows = put_column(rows, "text", pa.array([text for text, _ in masked], pa.string()))
        urls = (("url", mask_url), ("tdm_policy", mask_url))
        for column, mask_value in (*urls, ("metadata", _mask_metadata)):
            if column in rows.column_names:
                values = zip(read_strings(rows[column]), names, strict=True)
                told = [mask_value(value, settings, of_row) for value, of_row in values]
                rows = put_column(rows, column, pa.array(told, pa.string()))
        spans = [[_describe_span(span) for span in spans] for _, spans in masked]
        rows = put_column(rows, "pii", pa.array(spans, DOCUMENT.field("pii").type))
        finds = pa.array([len(spans) for _, spans in masked], pa.int64())
        return put_column(rows, "pii_finds", finds)


def mask_url(url: str, pii: PII, pseudonyms: Pseudonyms | None = None) -> str:
    """Return `url` with personal data masked; IP addresses stay, as they name hosts, not people."""
    kinds = tuple(kind for kind in pii.kinds if kind != "IP")
    return mask(url, pii.model_copy(update={"kinds": kinds}), pseudonyms=pseudonyms)[0]


def _mask_metadata(text: str, pii: PII, pseudonyms: Pseudonyms) -> str:
    """Return a JSON object with its strings masked; "" is returned unchanged."""
    if not text:
        return text
    values = json.loads(text)
    told = {
        name: mask(value, pii, pseudonyms=pseudonyms)[0] if isinstance(value, str) else value
        for name, value in values.items()
    }
    return json.dumps(told, ensure_ascii=False)


def _describe_span(span: MaskedSpan) -> dict[str, str | int]:
    return {"kind": span.kind, "start": span.start, "length": span.length}


class Language(TableOperator):
    """Identify the language of each text, by fastText's model of 176 languages.

    Texts of up to 2,000 characters are scored by n-grams of bytes as well. Adds `language`, an ISO
    639 code, and `language_score`, from 0 to 1.
    """

    # "blend", or "lid.176" for fastText's model alone.
    model: LanguageModel = "blend"
    # Whether to add `language_share`, the share of long lines that are in the text's language.
    paragraphs: bool = False

    def __call__(self, rows: pa.Table) -> pa.Table:
        """Return `rows` with their languages."""
        self.require_columns(rows, ["text"], _TEXT)
        texts = read_strings(rows["text"])
        languages, scores = identify_all(texts, model=self.model)
        if self.paragraphs:
            shares = pa.array(measure_language_share(texts, languages, self.model), pa.float64())
            rows = put_column(rows, LANGUAGE_SHARE, shares)
        rows = put_column(rows, "language", pa.array(languages, pa.string()))
        return put_column(rows, "language_score", pa.array(scores, pa.float64()))


class Measure(TableOperator):
    """Measure the signals that filters bound, such as words and shares of repeated lines.

    Adds a column for each signal, and `bytes`, the length of each text in UTF-8.
    """

    # Whether to add the columns that `words = "datatrove"` reads, which takes the extra of that
    # name.
    datatrove: bool = False

    def __call__(self, rows: pa.Table) -> pa.Table:
        """Return `rows` with their signals."""
        self.require_columns(rows, ["text"], _TEXT)
        self.require_columns(rows, ["language"], "apply `Language` first")
        texts = read_strings(rows["text"])
        sizes = pa.array([len(text.encode()) for text in texts], pa.int64())
        rows = put_column(rows, "bytes", sizes)
        languages = read_strings(rows["language"])
        found = measure(texts, languages, build_batch(texts))
        kinds = SIGNALS
        if self.datatrove:
            found |= load_datatrove().measure_datatrove(texts)
            kinds = {**SIGNALS, **load_datatrove().DATATROVE_SIGNALS}
        for name, kind in kinds.items():
            rows = put_column(rows, name, pa.array(found[name], pa.from_numpy_dtype(kind)))
        return rows


class Classify(TableOperator):
    """Score texts by models: trained classifiers, perplexity, or lists of words.

    Adds the column of each scorer; NaN stands for a text without a score.
    """

    # Models that score each text.
    scorers: tuple[Scorer, ...] = Field(min_length=1)

    def __call__(self, rows: pa.Table) -> pa.Table:
        """Return `rows` with their scores."""
        self.require_columns(rows, ["text"], _TEXT)
        self.require_columns(rows, ["language"], "apply `Language` first")
        texts = read_strings(rows["text"])
        languages = read_strings(rows["language"])
        for scorer in self.scorers:
            scores = pa.array(scorer.score(texts, languages), pa.float64())
            rows = put_column(rows, scorer.column, scores)
        return rows
