"""Tables of the records of finished splits: one Parquet file per phase, not a file per split.

    FOLDER/  records-00000012-….parquet   batches, while the phase runs
             records.parquet              all of them, once the phase has finished

A batch holds the splits that finished within COMMIT_SECONDS, so a killed driver loses the records
of that second alone, and their splits are done again. Every BATCHES_TOGETHER batches become one, so
a stage of days leaves hundreds of files, not hundreds of thousands.

The columns are the `name` of the split, and its `counts` and `files` as JSON.
"""

import re
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from trainrig import storage

if TYPE_CHECKING:
    import pyarrow as pa

COMMIT_SECONDS = 1.0  # s between two batches, unless no split finishes meanwhile
BATCHES_TOGETHER = 256  # batches that become one: at most about as many files are left
_ROWS_HELD = 50_000  # records of batches that wait to become one: about 30 MB
_ROW_GROUP = 10_000  # records per row group of a table
_WHOLE = "records.parquet"
_BATCH = re.compile(r"records-(\d{8})-[0-9a-f]{8}\.parquet")


class RecordRow(NamedTuple):
    """Record of a finished split, as a row of the table."""

    name: str
    counts: str  # JSON
    files: str  # JSON


@dataclass(frozen=True)
class RecordTables:
    """The tables in one folder, which may hold other files as well."""

    folder: str

    def list_paths(self) -> list[str]:
        """Return the locations of the tables, the oldest first."""
        return self.select_paths(storage.list_files(self.folder))

    def select_paths(self, paths: Sequence[str]) -> list[str]:
        """Select the tables among the listed files below the folder, the oldest first."""
        prefix = storage.join(self.folder, "")
        own = [path for path in paths if path.startswith(prefix)]
        names = {path.removeprefix(prefix): path for path in own}
        batches = sorted(name for name in names if _BATCH.fullmatch(name))
        return [names[name] for name in ([_WHOLE] if _WHOLE in names else []) + batches]

    def read(self, paths: Sequence[str], columns: Sequence[str] = RecordRow._fields) -> "pa.Table":
        """Return the rows of the tables `paths`, one for each split: the newest."""
        import pyarrow as pa
        import pyarrow.compute as pc

        tables = [pa.schema([(name, pa.string()) for name in columns]).empty_table()]
        for data in storage.read_files(paths):
            tables.append(_parse(data, columns))
        together = pa.concat_tables(tables)
        names = together["name"]
        if pc.count_distinct(names).as_py() == len(together):
            return together
        newest = {name: number for number, name in enumerate(names.to_pylist())}
        return together.take(sorted(newest.values()))

    def merge(self) -> None:
        """Put all tables together in one, if there are several."""
        paths = self.list_paths()
        if len(paths) > 1:
            self._replace(paths, self.read(paths))

    def forget(self, names: Sequence[str]) -> None:
        """Remove the records of the splits `names`."""
        import pyarrow as pa
        import pyarrow.compute as pc

        paths = self.list_paths()
        rows = self.read(paths)
        forgotten = pc.is_in(rows["name"], value_set=pa.array(names, pa.string()))
        self._replace(paths, rows.filter(pc.invert(forgotten)))

    def _replace(self, paths: Sequence[str], rows: "pa.Table") -> None:
        whole = storage.join(self.folder, _WHOLE)
        storage.write(whole, _format(rows))
        # A kill before this leaves batches that the table holds too.
        storage.delete_files(path for path in paths if path != whole)

    def open_writer(self, paths: Sequence[str]) -> "RecordWriter":
        """Return a writer of batches that are newer than all tables in `paths`."""
        found = [_BATCH.fullmatch(path.rpartition("/")[2]) for path in paths]
        numbers = [int(match.group(1)) for match in found if match]
        return RecordWriter(self.folder, max(numbers, default=-1) + 1)


@dataclass
class RecordWriter:
    """Writer of batches of records; leave its `with` block to write the last one.

    Several processes may write to one folder.
    """

    folder: str
    number: int  # number of the next batch
    _id: str = field(default_factory=lambda: uuid.uuid4().hex[:8])
    _waiting: list[RecordRow] = field(default_factory=list)
    _written: float = float("-inf")  # time of the last batch
    _batches: dict[str, "pa.Table"] = field(
        default_factory=dict
    )  # written batches, which become one

    def __enter__(self) -> "RecordWriter":
        return self

    def __exit__(self, *error: object) -> None:
        self.write()

    def add(self, row: RecordRow) -> None:
        """Add the record of a split; it is written at once if the last batch is old enough."""
        self._waiting.append(row)
        if time.monotonic() - self._written >= COMMIT_SECONDS:
            self.write()

    def write(self) -> None:
        """Write the records that wait, if any, as a batch."""
        import pyarrow as pa

        if not self._waiting:
            return
        columns = list(zip(*self._waiting, strict=True))
        rows = pa.table([pa.array(column, pa.string()) for column in columns], RecordRow._fields)
        path = storage.join(self.folder, f"records-{self.number:08d}-{self._id}.parquet")
        self._batches[path] = rows
        self._waiting = []
        held = sum(len(batch) for batch in self._batches.values())
        if len(self._batches) < BATCHES_TOGETHER and held < _ROWS_HELD:
            storage.write(path, _format(rows))
        else:
            # The newest batch takes the rows of the others, which are then removed.
            storage.write(path, _format(pa.concat_tables(self._batches.values())))
            storage.delete_files(other for other in self._batches if other != path)
            self._batches = {}
        self.number += 1
        self._written = time.monotonic()


def iterate_rows(table: "pa.Table", names: Sequence[str]) -> Iterator[RecordRow]:
    """Yield the rows of the splits `names`, in this order.

    Some rows at a time become Python objects. Raises FileNotFoundError if one is missing.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    wanted = pa.array(names, pa.string())
    places = pc.index_in(wanted, value_set=table["name"].combine_chunks())
    if places.null_count:
        missing = wanted.filter(pc.is_null(places))[0].as_py()
        raise FileNotFoundError(f"no record of the split {missing}")
    for begin in range(0, len(names), _ROW_GROUP):
        rows = table.take(places.slice(begin, _ROW_GROUP))
        columns = [rows[name].to_pylist() for name in RecordRow._fields]
        yield from map(RecordRow._make, zip(*columns, strict=True))


def _format(rows: "pa.Table") -> memoryview:
    import pyarrow as pa
    import pyarrow.parquet as pq

    stream = pa.BufferOutputStream()
    pq.write_table(rows, stream, row_group_size=_ROW_GROUP, compression="zstd")
    return memoryview(stream.getvalue())


def _parse(data: bytes, columns: Sequence[str]) -> "pa.Table":
    import pyarrow as pa
    import pyarrow.parquet as pq

    return pq.read_table(pa.BufferReader(data), columns=list(columns))
