"""Work cut into splits, each of which leaves a record when its outputs are whole.

A split's outputs are named by the split, so they do not depend on who made them, when, or beside
how many others; a killed stage resumes by doing the splits that have left no record.
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
    """A piece of a stage's work. `task` holds plain JSON values, so it travels anywhere."""

    name: str
    task: Mapping[str, Any]


class SplitRecord(BaseModel):
    """What a finished split left: counts for the manifest, and its files' sums."""

    model_config = ConfigDict(frozen=True)

    name: str
    counts: dict[str, Any]
    files: dict[Below, FileSum]  # in the stage's folder


Task = Mapping[str, Any]
Done = tuple[dict[str, Any], dict[str, FileSum]]
"""What a split's task came to: counts, and the sums of the files that it wrote."""
Work = Callable[[Task], Done]
"""Does one split's task."""


@dataclass(frozen=True)
class Phase:
    """One pass over all splits of a stage. `records` is the folder of the records."""

    records: str
    make_work: Callable[[], Work]  # called once in each worker: loads models, opens tables

    def record_path(self, split: Split) -> str:
        """Where the split's record lies once it is whole."""
        return storage.join(self.records, f"{split.name}.json")

    def find_unfinished(self, splits: Sequence[Split]) -> list[Split]:
        """The splits that have left no record."""
        done = set(storage.list_files(self.records, ".json"))
        return [split for split in splits if self.record_path(split) not in done]

    def do(self, work: Work, split: Split) -> None:
        """Do one split and leave its record, in that order."""
        counts, files = work(split.task)
        record = SplitRecord(name=split.name, counts=counts, files=files)
        storage.write(self.record_path(split), record.model_dump_json().encode())

    def read_results(self, splits: Sequence[Split]) -> list[SplitRecord]:
        """The records of all splits, in their order."""
        return [
            SplitRecord.model_validate_json(storage.read(self.record_path(split)))
            for split in splits
        ]


def sum_counts(counts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Numbers added up key by key, nested tables likewise; keys sorted, so the order is fixed."""
    sums: dict[str, Any] = {}
    for table in counts:
        for key, value in table.items():
            if isinstance(value, Mapping):
                sums[key] = sum_counts([sums.get(key, {}), value])
            else:
                sums[key] = sums.get(key, 0) + value
    return json.loads(json.dumps(sums, sort_keys=True))  # type: ignore[no-any-return]
