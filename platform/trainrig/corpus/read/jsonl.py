"""Reads JSON lines: one object a line, in UTF-8, plain or compressed."""

import json
from collections.abc import Iterator
from typing import Any, BinaryIO, cast

from trainrig.corpus.read.lines import iterate_lines
from trainrig.corpus.read.raw_page import RawPage, Unreadable
from trainrig.corpus.read.rows import build_page
from trainrig.corpus.read.settings import Fields
from trainrig.corpus.read.web_archives.packed import Unpacked

_MARK = b"\xef\xbb\xbf"


def read_jsonl(
    stream: BinaryIO, name: str, fields: Fields, begin: int = 0, end: int | None = None
) -> Iterator[RawPage | Unreadable]:
    """Read the texts of the lines that begin in [begin, end); a compressed file is read whole.

    Blank lines are skipped. Reasons of Unreadable: "too_large", "not_utf8", "bad_json",
    "not_an_object", and those of `build_page`; once, at the end, "truncated" or damage of a
    compressed stream.
    """
    unpacked = None if begin or end is not None else Unpacked(stream)
    source = stream if unpacked is None else cast(BinaryIO, unpacked)
    for start, line in iterate_lines(source, begin, end):
        where = f"{name}: line at byte {start}"
        if line is None:
            yield Unreadable(where, "too_large")
            continue
        line = line.removeprefix(_MARK) if start == 0 else line
        if line.strip():
            row = _parse_object(line)
            if isinstance(row, str):
                yield Unreadable(where, row)
            else:
                yield build_page(row, fields, where)
    if unpacked is not None and unpacked.reason:
        yield Unreadable(name, unpacked.reason)


def _parse_object(line: bytes) -> dict[str, Any] | str:
    """Return the object in `line`, or the reason why there is none."""
    try:
        value = json.loads(line.decode())
    except UnicodeDecodeError:
        return "not_utf8"
    except (ValueError, RecursionError):  # nested thousands deep, or numbers of thousands of digits
        return "bad_json"
    return value if isinstance(value, dict) else "not_an_object"
