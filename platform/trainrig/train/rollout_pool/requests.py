"""What is to be sampled for a batch, as it lies in the run folder: so workers and actors, which may
die at any time, know nothing of each other.

    online/rollouts/batch_00000007-c0ffee01/            where there is a lag
    online/rollouts/batch_00000007-c0ffee01/attempt-2/  else: on-policy, an attempt has its own
        weights-attempt-2/  to sample with, in files as a checkpoint has them
        request.json        once they are whole; the waves of a batch share those of the first
        asked.npz           what is asked beside the number, where batches leave something open
        00001.npz           a unit of what was sampled: whole or not there
        failed.json         why there will be none

All of it is deleted once the batch is stored whole.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NoReturn

from trainrig import errors, storage
from trainrig.errors import ClusterError, TrainrigError
from trainrig.tokens.batch_makers import NO_ARRAYS, Arrays
from trainrig.train.run.run_folder import RunFolder
from trainrig.train.run.stored_batches import FOLDER, pack_arrays, unpack_arrays

ROLLOUTS = "rollouts"
REQUEST, FAILED, ASKED, UNIT = "request.json", "failed.json", "asked.npz", ".npz"


@dataclass(frozen=True)
class RolloutRequest:
    """Units that are to be sampled with certain weights."""

    folder: str
    number: int  # of the batch; of the wave, where batches are filled by several
    units: int  # of it, numbered from 0
    weights: str  # folder
    attempt: int  # that asks
    has_asked: bool = False  # whether ASKED lies beside it

    def write(self, asked: Arrays = NO_ARRAYS) -> None:
        """Put it where samplers look, in place of an earlier attempt's; `asked`: as `asked` has
        it."""
        if self.has_asked:
            storage.write(storage.join(self.folder, ASKED), pack_arrays(asked))
        entries = {name: value for name, value in asdict(self).items() if name != "folder"}
        storage.write(storage.join(self.folder, REQUEST), json.dumps(entries, indent=1).encode())

    @classmethod
    def read(cls, folder: str) -> "RolloutRequest":
        """The one in `folder`. Raises FileNotFoundError."""
        return cls(folder, **json.loads(storage.read(storage.join(folder, REQUEST))))

    def read_asked(self) -> Arrays:
        """What its units are asked beside their numbers. Raises ClusterError if that is gone:
        then the request was withdrawn."""
        if not self.has_asked:
            return NO_ARRAYS
        try:
            return unpack_arrays(storage.read(storage.join(self.folder, ASKED)))
        except FileNotFoundError as error:
            raise ClusterError(f"{self.folder}: what was asked is gone") from error


def name_rollouts_folder(folder: RunFolder) -> str:
    """Where all requests of a run lie."""
    return storage.join(folder.path, FOLDER, ROLLOUTS)


def choose_poll_interval(folder: str) -> float:
    """Seconds between two looks at `folder`: in a bucket, each is a request."""
    return 1.0 if folder.startswith(storage.S3) else 0.01


def find_open(rollouts: str) -> list[tuple[RolloutRequest, list[int]]]:
    """The requests below `rollouts` that lack units, and which, the batch to be trained on first
    first."""
    by_folder: dict[str, set[str]] = {}
    for path in storage.list_files(rollouts):
        folder, _, name = path.rpartition("/")
        by_folder.setdefault(folder, set()).add(name)
    found = []
    for folder, names in by_folder.items():
        if REQUEST not in names or FAILED in names:
            continue
        try:
            request = RolloutRequest.read(folder)
        except FileNotFoundError:  # its batch was stored just now
            continue
        if missing := [n for n in range(request.units) if unit_name(n) not in names]:
            found.append((request, missing))
    return sorted(found, key=lambda each: (each[0].number, -each[0].attempt))


def delete_requests(folder: str) -> None:
    """Delete `folder`, with all below it that was asked for and sampled.

    The requests go first: else a sampler that looks meanwhile sees one that lacks units.
    """
    for path in storage.list_files(folder, REQUEST):
        storage.delete(path)
    storage.delete_folder(folder)


def unit_name(index: int) -> str:
    """The file of unit `index`."""
    return f"{index:05d}{UNIT}"


def find_missing_units(folder: str, units: int) -> list[int]:
    """Those of so many that `folder` lacks."""
    names = {path.rpartition("/")[2] for path in storage.list_files(folder, UNIT)}
    return [n for n in range(units) if unit_name(n) not in names]


def write_unit(folder: str, index: int, arrays: Arrays) -> None:
    """Put unit `index` into `folder`, whole."""
    storage.write(storage.join(folder, unit_name(index)), pack_arrays(arrays))


def read_unit(folder: str, index: int) -> Arrays | None:
    """Unit `index` of `folder`; None: it is not there yet."""
    try:
        data = storage.read(storage.join(folder, unit_name(index)))
    except FileNotFoundError:
        return None
    return unpack_arrays(data)


def write_failure(folder: str, error: TrainrigError) -> None:
    """Have those who wait for what `folder` lacks raise `error`."""
    entries = {"kind": type(error).__name__, "problem": str(error)}
    storage.write(storage.join(folder, FAILED), json.dumps(entries).encode())


def raise_failure(folder: str) -> None:
    """Raise what sampling for `folder` failed by, if it did."""
    try:
        entries: Mapping[str, Any] = json.loads(storage.read(storage.join(folder, FAILED)))
    except FileNotFoundError:
        return
    _raise(entries)


def _raise(entries: Mapping[str, Any]) -> NoReturn:
    raise getattr(errors, entries["kind"])(entries["problem"])
