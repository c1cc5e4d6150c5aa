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

import numpy as np
import numpy.typing as npt

from trainrig import storage

if TYPE_CHECKING:
    import pyarrow as pa

COMMIT_SECONDS = 1.0  # s between two batches, unless no split finishes meanwhile
BATCHES_TOGETHER = 256  # batches that become one: at most about as many files are left
_BYTES_HELD = 32 * 2**20  # bytes of batches that wait to become one, at 8 kB a split in curate
_ROW_GROUP = 10_000  # records per row group of a table
_ROWS_TOGETHER = 1_000  # records that become Python objects together
_WHOLE = "records.parquet"
_BATCH = re.compile(r"records-(\d{8})-[0-9a-f]{8}\.parquet")


class RecordRow(NamedTuple):
    """Record of a finished split, as a row of the table."""

    name: str
    counts: str  # JSON
    files: str  # JSON


_COLUMNS = RecordRow._fields


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
        below = [path for path in paths if path.startswith(prefix)]
        names = {path.removeprefix(prefix): path for path in below}
        batches = sorted(name for name in names if _BATCH.fullmatch(name))
        return [names[name] for name in ([_WHOLE] if _WHOLE in names else []) + batches]

    def read(self, paths: Sequence[str], columns: Sequence[str] = _COLUMNS) -> "pa.Table":
        """Return the rows of the tables `paths`, one for each split: the newest."""
        import pyarrow as pa
        import pyarrow.compute as pc

        # The texts of a large column may have more than the 2 GiB that a `pa.string` can hold.
        tables = [pa.schema([(name, pa.large_string()) for name in columns]).empty_table()]
        for data in storage.read_files(paths):
            tables.append(_parse(data, columns))
        together = pa.concat_tables(tables)
        names = together["name"]
        if pc.count_distinct(names).as_py() == len(together):
            return together
        newest = {name: number for number, name in enumerate(names.to_pylist())}
        chosen = np.zeros(len(together), bool)
        chosen[list(newest.values())] = True
        return together.filter(pa.array(chosen))

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
        forgotten = pc.is_in(rows["name"], value_set=pa.array(names, pa.large_string()))
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
        rows = pa.table([pa.array(column, pa.large_string()) for column in columns], _COLUMNS)
        path = storage.join(self.folder, f"records-{self.number:08d}-{self._id}.parquet")
        batches = {**self._batches, path: rows}
        held = sum(batch.nbytes for batch in batches.values())
        together = len(batches) >= BATCHES_TOGETHER or held >= _BYTES_HELD
        storage.write(path, _format(pa.concat_tables(batches.values()) if together else rows))
        # If the write failed, the records still wait, and the next write repeats it.
        self._waiting = []
        self._batches = {} if together else batches
        self.number += 1
        self._written = time.monotonic()
        if together:
            # The newest batch took the rows of the others.
            storage.delete_files(other for other in batches if other != path)


def iterate_rows(table: "pa.Table", names: Sequence[str]) -> Iterator[RecordRow]:
    """Yield the rows of the splits `names`, in this order.

    Some rows at a time are copied and become Python objects, so the time is linear in their number.
    Raises FileNotFoundError if one is missing.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    known = pc.cast(table["name"], pa.large_string()).combine_chunks()
    wanted = pa.array(names, pa.large_string())
    places = pc.index_in(wanted, value_set=known)
    if places.null_count:
        missing = wanted.filter(pc.is_null(places))[0].as_py()
        raise FileNotFoundError(f"no record of the split {missing}")
    chunks = table.to_batches()
    firsts = np.cumsum([0, *map(len, chunks)])
    for begin in range(0, len(names), _ROWS_TOGETHER):
        yield from _take_rows(chunks, firsts, places.slice(begin, _ROWS_TOGETHER).to_numpy())


def _take_rows(
    chunks: Sequence["pa.RecordBatch"], firsts: npt.NDArray[np.int64], places: npt.NDArray[np.int32]
) -> list[RecordRow]:
    """Return the rows at `places`, of chunks whose first rows are at `firsts`.

    `Table.take` would first copy whole columns together, for the few rows of a call too.
    """
    owners = np.searchsorted(firsts, places, side="right") - 1
    rows: dict[int, RecordRow] = {}
    for owner in np.unique(owners):
        (inside,) = np.nonzero(owners == owner)
        taken = chunks[owner].take(places[inside] - firsts[owner])
        columns = [taken[name].to_pylist() for name in _COLUMNS]
        rows.update(zip(inside.tolist(), map(RecordRow, *columns), strict=True))
    return [rows[number] for number in range(len(places))]


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
