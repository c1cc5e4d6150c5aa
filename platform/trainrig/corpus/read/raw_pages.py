"""What reading gives for every format: pages, and records that could not be read.

`ReadSettings` is the part of a run file about how the files of a source are read. `build_page`
converts a table row (a JSON object or a Parquet row) into a page.
"""

import codecs
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from trainrig.config import Settings
from trainrig.corpus.read.json_rows import contains_value, find_text, find_value

LARGEST_BODY = 64 * 2**20  # bytes; Common Crawl truncates bodies at 1 to 5 MiB


@dataclass(frozen=True)
class RawPage:
    """One page, or one text of a file of texts."""

    url: str
    content_type: str  # media type without parameters, in lower case: "text/html"; "" if unknown
    body: bytes  # without chunked transfer encoding and content encoding
    date: str  # ISO 8601: time of the fetch, or a date in the file
    charset: str | None  # declared charset: from the Content-Type header, or the run file
    id: str = ""  # id in the file; "" if none
    metadata: Mapping[str, str] = field(default_factory=dict)
    # Response headers about permissions, by name in lower case; repeated ones are joined by "\n".
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Unreadable:
    """A record, or the rest of a file, that could not be used."""

    where: str  # "crawl.warc.gz: record at byte 1234", without the folder, which may change
    reason: str  # a code to count by: "revisit", "not_http_200", "truncated", …
    left_out: int = 0  # bytes of the body, if the record was read but not processed


# warc includes WET and WAT; text includes .txt and .md; html is a page saved as a file.
# json is an array of objects, or objects over several lines; jsonl has an object on each line.
Format = Literal["warc", "arc", "jsonl", "json", "parquet", "text", "html"]


class Fields(Settings):
    """Names of the keys of JSON objects, or of the columns of Parquet files, to read.

    A key inside an object, or a field of a struct, is named with a dot: "meta.url". A row without
    its text is counted as unreadable; other keys may be missing.
    """

    # Key or column of the text, which is a string or a list of strings. Several, such as
    # ["instruction", "input", "output"], are joined in this order; empty ones are left out.
    text: str | tuple[str, ...] = "text"
    # Separator of the strings of a list, and of several keys or columns.
    join: str = "\n\n"
    # Key or column of an HTML page to extract; if set, `text` is not read.
    html: str | None = None
    url: str = "url"  # key or column of the URL
    id: str = "id"  # key or column of the row's own id
    date: str = "date"  # key or column of the date
    metadata: tuple[str, ...] = ()  # further keys or columns to keep with the document, as text

    @model_validator(mode="after")
    def _check_text(self) -> Self:
        if not self.text:
            raise ValueError("text names no key; name one, such as 'text', or several")
        return self

    def list_bodies(self) -> tuple[str, ...]:
        """Return the keys or columns of the text, or the one of the HTML page."""
        if self.html is not None:
            return (self.html,)
        return (self.text,) if isinstance(self.text, str) else self.text

    def list_columns(self) -> list[str]:
        """Return all keys or columns to read, without repetitions."""
        others = (self.url, self.id, self.date, *self.metadata)
        return list(dict.fromkeys([*self.list_bodies(), *others]))


class ReadSettings(Settings):
    """Settings of reading, all part of a run's identity, as they decide names and bytes."""

    # Format of the files; None: detected for each file by its first bytes or its name.
    format: Format | None = None
    fields: Fields = Fields()  # names of the keys or columns in JSONL and Parquet
    # Extent of one document in a text file: the file, a line, or a block of lines up to a blank
    # one.
    documents: Literal["file", "line", "block"] = "file"
    encoding: str | None = None  # character encoding of text files; None: detected for each file
    base_url: str = ""  # URL that the relative path of an HTML or text file is appended to
    # Approximate bytes of input (as stored, compressed or not) of one piece; None: a 256th of the
    # source, but at least 4 MiB (a second's work of one core) and at most 64 MiB. The size never
    # depends on the number of workers, because output files are named after pieces.
    piece_bytes: int | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _check_encoding(self) -> Self:
        if self.encoding is not None:
            try:
                codecs.lookup(self.encoding)
            except LookupError:
                raise ValueError(
                    f"encoding {self.encoding!r} is unknown; use one such as 'utf-8' or 'cp1252'"
                ) from None
        return self


_SURROGATE = re.compile("[\ud800-\udfff]")  # a lone surrogate, which UTF-8 cannot encode


def build_page(row: Mapping[str, Any], fields: Fields, where: str) -> RawPage | Unreadable:
    """Build the page of `row`. Reasons: "no_text" (or null), "text_is_no_string", "too_large"."""
    try:
        text = find_text(row, fields.text if fields.html is None else fields.html, fields.join)
    except TypeError:
        return Unreadable(where, "text_is_no_string")
    if text is None:
        return Unreadable(where, "no_text")
    try:
        body = text.encode()
    except UnicodeEncodeError:
        body = _replace_surrogates(text).encode()
    if len(body) > LARGEST_BODY:
        return Unreadable(where, "too_large")
    return RawPage(
        url=_convert_to_text(find_value(row, fields.url)),
        content_type="text/plain" if fields.html is None else "text/html",
        body=body,
        date=_convert_to_text(find_value(row, fields.date)),
        charset="utf-8",
        id=_convert_to_text(find_value(row, fields.id)),
        metadata={
            name: _convert_to_text(find_value(row, name))
            for name in fields.metadata
            if contains_value(row, name)
        },
    )


def _convert_to_text(value: Any) -> str:
    """Convert a value to a string: dates to ISO 8601, tables to JSON, None to ""."""
    if value is None:
        return ""
    if isinstance(value, str):
        return _replace_surrogates(value)
    if isinstance(value, date):  # includes datetimes
        return value.isoformat()
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return _replace_surrogates(json.dumps(value, ensure_ascii=False, sort_keys=True, default=str))


def _replace_surrogates(text: str) -> str:
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)
