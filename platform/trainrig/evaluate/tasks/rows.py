"""Reading of benchmark rows from JSON Lines (plain or .gz) or Parquet, on disk or in a bucket."""

import functools
import gzip
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from trainrig import storage
from trainrig import storage as utf8
from trainrig.errors import DataError

_GZIP = b"\x1f\x8b"


@dataclass(frozen=True)
class TaskRow:
    """One row with its number in the file, from 1."""

    number: int
    fields: Mapping[str, Any]


@functools.lru_cache(maxsize=8)
def read_rows(path: str) -> tuple[TaskRow, ...]:
    """Return all rows of the file at `path`. Raises DataError, with file and row, if invalid."""
    try:
        data = storage.read(path)
    except FileNotFoundError:
        raise DataError(
            f"{path}: no such file; correct `rows` of the task, or `task_rows`"
        ) from None
    except IsADirectoryError:
        raise DataError(f"{path}: this is a folder; name the file of rows in it") from None
    rows = (
        _parse_parquet(path, data) if path.endswith(".parquet") else _parse_json_lines(path, data)
    )
    if not rows:
        raise DataError(f"{path}: the file has no row")
    return rows


def _parse_parquet(path: str, data: bytes) -> tuple[TaskRow, ...]:
    try:
        table = pq.read_table(pa.BufferReader(data))
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path}: not a Parquet file: {error}") from None
    return tuple(TaskRow(number, row) for number, row in enumerate(table.to_pylist(), 1))


def _parse_json_lines(path: str, data: bytes) -> tuple[TaskRow, ...]:
    if data.startswith(_GZIP):
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(f"{path}: damaged: {error}") from None
    try:
        text = utf8.decode_utf8(data)
    except utf8.NotUtf8 as error:
        raise DataError(f"{path}: {error}") from None
    rows = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            rows.append(TaskRow(number, _parse_object(line, f"{path}: row {number}")))
    return tuple(rows)


def _parse_object(line: str, where: str) -> Mapping[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not JSON: {error}") from None
    if not isinstance(found, dict):
        raise DataError(f"{where}: a JSON {type(found).__name__}; write a JSON object")
    return found
