"""Stages divided into splits, each of which writes a record once its outputs are complete.

The outputs of a split are named after the split, so they do not depend on the worker, the time or
the number of workers. A killed stage resumes with the splits that have no record.

The work of a *divisible* phase can process some records of a split alone. So the runner can find a
record that kills its process, and have the work leave it out: see `RecordSelection`.
"""

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict

from trainrig import storage
from trainrig.manifest import Below, FileSum

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

    def record_path(self, split: Split) -> str:
        """Return the location of the record of `split`."""
        return storage.join(self.records, f"{split.name}.json")

    def find_unfinished(self, splits: Sequence[Split]) -> list[Split]:
        """Return the splits that have no record yet, without the records that kill their process.

        Those were found by an earlier run, and noted by `note_crashed`.
        """
        there = set(storage.list_files(self.records))
        left = [split for split in splits if self.record_path(split) not in there]
        return [
            Split(split.name, {**split.task, CRASHED: json.loads(storage.read(path))})
            if (path := self._crashed_path(split)) in there
            else split
            for split in left
        ]

    def note_crashed(self, split: Split) -> None:
        """Keep the numbers of the records that are left out of `split`, for later runs."""
        storage.write(self._crashed_path(split), json.dumps(split.task[CRASHED]).encode())

    def _crashed_path(self, split: Split) -> str:
        return storage.join(self.records, f"{split.name}.{CRASHED}")

    def do(self, work: Work, split: Split) -> None:
        """Perform the task of one split, then write its record."""
        counts, files = work(split.task)
        record = SplitRecord(name=split.name, counts=counts, files=files)
        storage.write(self.record_path(split), record.model_dump_json().encode())

    def read_results(self, splits: Sequence[Split]) -> list[SplitRecord]:
        """Read the records of `splits`, in the same order."""
        paths = [self.record_path(split) for split in splits]
        return [SplitRecord.model_validate_json(data) for data in storage.read_files(paths)]


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
