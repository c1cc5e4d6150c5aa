"""Reads texts from Parquet by row groups, and only the required columns."""

from collections.abc import Iterable, Iterator, Sequence
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from trainrig import storage
from trainrig.config import suggest_choice
from trainrig.corpus.read.raw_pages import Fields, RawPage, Unreadable, build_page
from trainrig.errors import DataError

_ROWS = 256  # rows decoded at a time
_BUFFER = 2**20  # bytes of a column read at a time, as row groups may be larger than memory


def measure_row_groups(path: str, fields: Fields) -> list[int]:
    """Measure the stored bytes to read of each row group; return [] if the file is damaged.

    Raises DataError if a named column is missing.
    """
    with storage.open_read(path) as stream:
        try:
            file = _open(stream)
        except (pa.ArrowException, OSError) as error:
            _raise_if_not_damage(error)
            return []
        wanted = _select_columns(file, path, fields)
        found = []
        for number in range(file.metadata.num_row_groups):
            group = file.metadata.row_group(number)
            columns = (group.column(n) for n in range(group.num_columns))
            found.append(
                sum(
                    column.total_compressed_size
                    for column in columns
                    if any(f"{column.path_in_schema}.".startswith(f"{name}.") for name in wanted)
                )
            )
        return found


def read_parquet(
    stream: BinaryIO, name: str, fields: Fields, begin: int = 0, end: int | None = None
) -> Iterator[RawPage | Unreadable]:
    """Read the texts of the row groups [begin, end).

    Reasons of Unreadable: those of `build_page`, and "damaged_parquet" for a file or a row group.
    Raises DataError if a named column is missing.
    """
    try:
        file = _open(stream)
    except (pa.ArrowException, OSError) as error:
        _raise_if_not_damage(error)
        yield Unreadable(name, "damaged_parquet")
        return
    columns = _select_columns(file, name, fields)
    groups = file.metadata.num_row_groups
    row = sum(file.metadata.row_group(number).num_rows for number in range(begin))
    for number in range(begin, groups if end is None else end):
        first = row
        try:
            for batch in file.iter_batches(_ROWS, row_groups=[number], columns=columns):
                for values in batch.to_pylist():
                    yield build_page(values, fields, f"{name}: row {row}")
                    row += 1
        except (pa.ArrowException, OSError) as error:
            _raise_if_not_damage(error)
            yield Unreadable(f"{name}: row group {number} from row {row} on", "damaged_parquet")
        row = first + file.metadata.row_group(number).num_rows


def _open(stream: BinaryIO) -> pq.ParquetFile:
    return pq.ParquetFile(stream, buffer_size=_BUFFER, pre_buffer=False)


def _raise_if_not_damage(error: Exception) -> None:
    """Raise `error` if it has an errno: it is then the storage's, not due to damaged contents."""
    if isinstance(error, OSError) and error.errno is not None:
        raise error


def _select_columns(file: pq.ParquetFile, name: str, fields: Fields) -> Sequence[str]:
    """Return the named columns that exist, such as "text" or "meta.url" of a struct.

    Raises DataError if a required one is missing.
    """
    schema = file.schema_arrow
    there = _list_columns(schema)
    wanted = fields.list_columns()
    optional = {"url", "id", "date"} - fields.model_fields_set
    missing = [
        column
        for column in wanted
        if column not in there and column not in {getattr(fields, field) for field in optional}
    ]
    if missing:
        raise DataError(
            f"{name}: no column '{missing[0]}'{suggest_choice(missing[0], there)}; set the "
            "names of the columns in `fields`"
        )
    return [column for column in wanted if column in there]


def _list_columns(fields: Iterable[pa.Field], before: str = "") -> list[str]:
    """Return the names of all columns, and of the fields of structs as "meta.url"."""
    names: list[str] = []
    for field in fields:
        name = f"{before}{field.name}"
        names.append(name)
        if pa.types.is_struct(field.type):
            names += _list_columns(field.type, f"{name}.")
    return names
