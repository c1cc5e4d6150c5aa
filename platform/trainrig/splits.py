"""Stages divided into splits, each of which writes a record once its outputs are complete.

The outputs of a split are named after the split, so they do not depend on the worker, the time or
the number of workers. A killed stage resumes with the splits that have no record.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict

from trainrig import storage
from trainrig.manifest import Below, FileSum


@dataclass(frozen=True)
class Split:
    """A part of a stage's work; `task` holds plain JSON values, to be sent to any worker."""

    name: str
    task: Mapping[str, Any]


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


@dataclass(frozen=True)
class Phase:
    """One pass over all splits of a stage; `records` is the folder of the records."""

    records: str
    make_work: Callable[[], Work]  # called once in each worker, to load models and open tables

    def record_path(self, split: Split) -> str:
        """Return the location of the record of `split`."""
        return storage.join(self.records, f"{split.name}.json")

    def find_unfinished(self, splits: Sequence[Split]) -> list[Split]:
        """Return the splits that have no record yet."""
        done = set(storage.list_files(self.records, ".json"))
        return [split for split in splits if self.record_path(split) not in done]

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
    """Sum the numbers of all tables key by key, nested tables too, and sort the keys."""
    sums: dict[str, Any] = {}
    for table in counts:
        for key, value in table.items():
            if isinstance(value, Mapping):
                sums[key] = sum_counts([sums.get(key, {}), value])
            else:
                sums[key] = sums.get(key, 0) + value
    return json.loads(json.dumps(sums, sort_keys=True))  # type: ignore[no-any-return]
