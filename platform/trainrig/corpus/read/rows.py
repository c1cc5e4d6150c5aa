"""Converts table rows (JSON objects or Parquet rows) into pages."""

import json
import re
from collections.abc import Mapping
from datetime import date
from typing import Any

from trainrig.corpus.read.raw_page import LARGEST_BODY, RawPage, Unreadable
from trainrig.corpus.read.settings import Fields

_SURROGATE = re.compile("[\ud800-\udfff]")  # a lone surrogate, which UTF-8 cannot encode


def build_page(row: Mapping[str, Any], fields: Fields, where: str) -> RawPage | Unreadable:
    """Build the page of `row`. Reasons: "no_text" (or null), "text_is_no_string", "too_large"."""
    text = row.get(fields.text if fields.html is None else fields.html)
    if text is None:
        return Unreadable(where, "no_text")
    if not isinstance(text, str):
        return Unreadable(where, "text_is_no_string")
    try:
        body = text.encode()
    except UnicodeEncodeError:
        body = _clean(text).encode()
    if len(body) > LARGEST_BODY:
        return Unreadable(where, "too_large")
    return RawPage(
        url=_convert_to_text(row.get(fields.url)),
        content_type="text/plain" if fields.html is None else "text/html",
        body=body,
        date=_convert_to_text(row.get(fields.date)),
        charset="utf-8",
        id=_convert_to_text(row.get(fields.id)),
        metadata={name: _convert_to_text(row[name]) for name in fields.metadata if name in row},
    )


def _convert_to_text(value: Any) -> str:
    """Convert a value to a string: dates to ISO 8601, tables to JSON, None to ""."""
    if value is None:
        return ""
    if isinstance(value, str):
        return _clean(value)
    if isinstance(value, date):  # includes datetimes
        return value.isoformat()
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return _clean(json.dumps(value, ensure_ascii=False, sort_keys=True, default=str))


def _clean(text: str) -> str:
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)
