"""Parquet files of documents whose bytes depend on the rows alone.

Rows arrive in tables of any size. Row groups are cut by row count, so the same rows always give the
same file.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from trainrig import storage

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

ROW_GROUP = 1000  # rows per group: about 5 MB of text, which a writer buffers


class RowFile:
    """A Parquet file being written by `writing`."""

    def __init__(self, writer: pq.ParquetWriter, schema: pa.Schema) -> None:
        self._writer = writer
        self._schema = schema
        self._waiting: list[pa.Table] = []
        self._rows = 0

    def add(self, table: pa.Table) -> None:
        """Append rows; columns outside the file's schema are left out."""
        self._waiting.append(table.select(self._schema.names).cast(self._schema))
        self._rows += len(table)
        if self._rows >= ROW_GROUP:
            self._write(self._rows - self._rows % ROW_GROUP)

    def _write(self, rows: int) -> None:
        import pyarrow as pa

        # One chunk, because the chunks of the input must not change how rows are encoded.
        waiting = pa.concat_tables([self._schema.empty_table(), *self._waiting]).combine_chunks()
        if rows or not self._writer_has_rows:
            self._writer.write_table(waiting.slice(0, rows), row_group_size=ROW_GROUP)
            self._writer_has_rows = True
        self._waiting = [waiting.slice(rows)]
        self._rows -= rows

    _writer_has_rows = False

    def close(self) -> None:
        """Write the buffered rows; a file without rows gets one empty row group."""
        if self._rows or not self._writer_has_rows:
            self._write(self._rows)


@contextlib.contextmanager
def writing(path: str, schema: pa.Schema) -> Iterator[RowFile]:
    """Open a Parquet file for appending rows.

    The file appears at `path` only when the block ends without an exception.
    """
    import pyarrow.parquet as pq

    with (
        storage.atomic_file(path) as temporary,
        pq.ParquetWriter(temporary, schema, compression="zstd") as writer,
    ):
        file = RowFile(writer, schema)
        yield file
        file.close()


def read_columns(path: str, columns: Sequence[str]) -> pa.Table:
    """Read the named columns of the Parquet file at `path`."""
    import pyarrow.parquet as pq

    # a bucket sends only the bytes of these columns
    with storage.open_for_arrow(path) as file:
        return pq.read_table(file, columns=list(columns))


def read_column_names(path: str) -> list[str]:
    """Return the column names of the Parquet file at `path`."""
    import pyarrow.parquet as pq

    with storage.open_read(path) as file:
        return list(pq.read_schema(file).names)
