"""Stages divided into splits, each of which gets a record once its outputs are complete.

The outputs of a split are named after the split, so they do not depend on the worker, the time or
the number of workers. A killed stage resumes with the splits that have no record.

The work of a *divisible* phase can process some records of a split alone. So the runner can find a
record that kills its process, and have the work leave it out: see `RecordSelection`.
"""

import itertools
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, TypeAdapter

from trainrig import storage
from trainrig.manifest import Below, FileSum
from trainrig.manifest.split_records import RecordRow, RecordTables, RecordWriter, iterate_rows

# Bytes of a worker that loads neither a model nor tables. Measured as resident memory: 470 MiB to
# read pages, 305 MiB to encode shards of 64 MiB of text.
PLAIN_WORKER = 512 * 2**20
# Key of a task: process only the records from the first number to before the last, write nothing.
PROBED = "probed"
# Key of a task: numbers of the records that kill their process. The work puts these in quarantine.
# It is also the reason that stands there.
CRASHED = "crashed"

_Record = TypeVar("_Record")


@dataclass(frozen=True)
class Split:
    """A part of a stage's work; `task` holds plain JSON values, to be sent to any worker."""

    name: str
    task: Mapping[str, Any]

    def probe(self, begin: int, end: int) -> "Split":
        """Return the split with the task to try the records from `begin` to before `end`."""
        return Split(self.name, {**self.task, PROBED: [begin, end]})

    def leave_out(self, record: int) -> "Split":
        """Return the split with the task to put one more record in quarantine."""
        return Split(self.name, {**self.task, CRASHED: [*self.task.get(CRASHED, ()), record]})

    def list_paths(self) -> list[str]:
        """Return the files that the split reads, as far as its task names them."""
        pieces = [*self.task.get("pieces", ()), *self.task.get("parts", ())]
        return list(dict.fromkeys(piece["path"] for piece in pieces))


class SplitRecord(BaseModel):
    """Record of a finished split: counts for the manifest, and sizes and hashes of its files."""

    model_config = ConfigDict(frozen=True)

    name: str
    counts: dict[str, Any]
    files: dict[Below, FileSum]  # files by their path in the stage's folder

    def to_row(self) -> RecordRow:
        """Return the record as a row of a table."""
        files = _FILES.dump_json(self.files).decode()
        return RecordRow(self.name, _COUNTS.dump_json(self.counts).decode(), files)

    @classmethod
    def from_row(cls, row: RecordRow) -> "SplitRecord":
        """Return the record in a row of a table."""
        files = _FILES.validate_json(row.files)
        return cls(name=row.name, counts=json.loads(row.counts), files=files)


_COUNTS = TypeAdapter(dict[str, Any])
_FILES = TypeAdapter(dict[Below, FileSum])

Task = Mapping[str, Any]
Done = tuple[dict[str, Any], dict[str, FileSum]]
"""Result of a split's task: counts, and sizes and hashes of the files that it wrote."""
Work = Callable[[Task], Done]
"""Function that performs the task of one split."""


class RecordSelection:
    """The records of a split that its task asks for, numbered from 0 in reading order.

    If `probing`, the work processes the records and writes nothing. It returns the counts of
    `build_probe_counts`.
    """

    def __init__(self, task: Task) -> None:
        begin, end = task.get(PROBED, (0, None))
        self.probing = PROBED in task
        self._crashed = frozenset(task.get(CRASHED, ()))
        self._begin = begin
        self._end = end
        self._read = 0

    def choose(self, records: Iterable[_Record]) -> Iterator[tuple[_Record, bool]]:
        """Yield each record to process, and whether it goes to quarantine unprocessed.

        Call this for all pieces of the split, in order.
        """
        left = None if self._end is None else max(0, self._end - self._read)
        for record in itertools.islice(records, left):
            number = self._read
            self._read += 1
            if number >= self._begin:
                yield record, number in self._crashed

    def build_probe_counts(self) -> dict[str, Any]:
        """Return the number of records that were read, as the counts of the split."""
        return {"records": self._read}


@dataclass(frozen=True)
class Phase:
    """One pass over all splits of a stage; `records` is the folder of the records."""

    records: str
    make_work: Callable[[], Work]  # called once in each worker, to load models and open tables
    divisible: bool = False  # Whether the work obeys PROBED and CRASHED.
    title: str = "splits"  # Name in Ray's progress and dashboard, such as "curate: read pages".
    memory: int = PLAIN_WORKER  # Bytes that a worker usually takes; Ray places it by them.

    @property
    def tables(self) -> RecordTables:
        """The tables of the records of finished splits."""
        return RecordTables(self.records)

    def open_records(self, splits: Sequence[Split]) -> tuple[list[Split], RecordWriter]:
        """Return the splits that have no record yet, and a writer of their records.

        Records that kill their process are left out of these splits. They were found by an earlier
        run, and noted by `note_crashed`. Records in one file for each split, which trainrig before
        0.2 left, are moved into a table.
        """
        listed = storage.list_files(self.records)
        paths = self.tables.select_paths(listed)
        done = set(self.tables.read(paths, ["name"])["name"].to_pylist()) if paths else set()
        there = set(listed)
        writer = self.tables.open_writer(paths)
        left = [split for split in splits if split.name not in done]
        done |= self._adopt_files(left, there, writer)
        left = [
            Split(split.name, {**split.task, CRASHED: json.loads(storage.read(path))})
            if (path := self._crashed_path(split)) in there
            else split
            for split in left
            if split.name not in done
        ]
        return left, writer

    def _adopt_files(
        self, splits: Sequence[Split], there: Collection[str], writer: RecordWriter
    ) -> set[str]:
        """Move record files of an older version into a table; return the names of the splits."""
        paths = [storage.join(self.records, f"{split.name}.json") for split in splits]
        found = [path for path in paths if path in there]
        names = set[str]()
        for data in storage.read_files(found):
            record = SplitRecord.model_validate_json(data)
            writer.add(record.to_row())
            names.add(record.name)
        writer.write()
        storage.delete_files(found)
        return names

    def find_unfinished(self, splits: Sequence[Split]) -> list[Split]:
        """Return the splits that have no record yet, as `open_records` does."""
        return self.open_records(splits)[0]

    def note_crashed(self, split: Split) -> None:
        """Keep the numbers of the records that are left out of `split`, for later runs."""
        storage.write(self._crashed_path(split), json.dumps(split.task[CRASHED]).encode())

    def _crashed_path(self, split: Split) -> str:
        return storage.join(self.records, f"{split.name}.{CRASHED}")

    def do(self, work: Work, split: Split) -> SplitRecord:
        """Perform the task of one split, and return its record, which the driver keeps."""
        counts, files = work(split.task)
        return SplitRecord(name=split.name, counts=counts, files=files)

    def read_results(self, splits: Sequence[Split]) -> list[SplitRecord]:
        """Read the records of `splits`, in the same order."""
        return list(self.iterate_results(splits))

    def iterate_results(self, splits: Sequence[Split]) -> Iterator[SplitRecord]:
        """Yield the records of `splits`, in the same order.

        The table of all records stays in memory, with their JSON: up to 8 kB for each split in a
        pass of `curate`. Raises FileNotFoundError if a split has no record.
        """
        table = self.tables.read(self.tables.list_paths())
        for row in iterate_rows(table, [split.name for split in splits]):
            yield SplitRecord.from_row(row)


def sum_counts(counts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Sum the numbers of all tables key by key, nested tables too, and sort the keys.

    Each number is read once, so the time is linear in the size of the tables.
    """
    sums: dict[str, Any] = {}
    for table in counts:
        _add_counts(sums, table)
    return json.loads(json.dumps(sums, sort_keys=True))  # type: ignore[no-any-return]


def _add_counts(sums: dict[str, Any], table: Mapping[str, Any]) -> None:
    """Add the numbers of `table` to those in `sums`, which this changes."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            _add_counts(sums.setdefault(key, {}), value)
        else:
            sums[key] = sums.get(key, 0) + value
