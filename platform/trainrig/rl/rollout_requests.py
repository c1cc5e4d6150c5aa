"""Requests for rollouts, and their samples, as files in the run folder.

Training workers write requests; rollout actors sample for them. Either may die at any time, so they
communicate only through these files:

    online/rollouts/batch_00000007-c0ffee01/            with a lag; the suffix is a hash of settings
    online/rollouts/batch_00000007-c0ffee01/attempt-2/  without a lag, one folder per attempt
        weights-attempt-2/  weights to sample with, in the format of a checkpoint; in the folder of
                            a batch's first wave, for all its waves
        request.json        written once the weights are complete
        asked.npz           input of the wave, for batches that continue completions
        00001.npz           the samples of one unit; appears only when complete
        failed.json         why there will be none

A *unit* is the samples of one micro-batch. A *wave* is one round of sampling for a batch; some
batches take several waves until they are full. The *lag* is the number of batches by which sampling
is ahead of training (`rl.rollout_maker.RolloutMaker`). All files are deleted once the batch is
stored in the run folder.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NoReturn

from trainrig import errors, storage
from trainrig.errors import ClusterError, TrainrigError
from trainrig.rl.rollout_maker import NO_ARRAYS, Arrays
from trainrig.train.run.run_folder import RunFolder
from trainrig.train.run.step_data import ONLINE_FOLDER, pack_arrays, unpack_arrays

ROLLOUTS = "rollouts"
REQUEST = "request.json"
FAILED = "failed.json"
ASKED = "asked.npz"  # input of the wave
UNIT = ".npz"


@dataclass(frozen=True)
class RolloutRequest:
    """Units to sample with given weights."""

    folder: str
    number: int  # number of the batch, or of the wave if batches take several waves
    units: int  # number of units, with indices from 0
    weights: str  # folder of the weights
    attempt: int  # the training attempt that wrote the request
    has_asked: bool = False  # True if the folder has the input of the wave, in the file ASKED

    def write(self, wave_input: Arrays = NO_ARRAYS) -> None:
        """Write `wave_input`, then the request; replace the files of an earlier attempt."""
        if self.has_asked:
            storage.write(storage.join(self.folder, ASKED), pack_arrays(wave_input))
        entries = {name: value for name, value in asdict(self).items() if name != "folder"}
        storage.write(storage.join(self.folder, REQUEST), json.dumps(entries, indent=1).encode())

    @classmethod
    def read(cls, folder: str) -> "RolloutRequest":
        """Read the request in `folder`. Raise FileNotFoundError if there is none."""
        return cls(folder, **json.loads(storage.read(storage.join(folder, REQUEST))))

    def read_wave_input(self) -> Arrays:
        """Read the input of the wave, for batches that continue completions.

        Raises ClusterError if it is gone, because the request was withdrawn.
        """
        if not self.has_asked:
            return NO_ARRAYS
        try:
            return unpack_arrays(storage.read(storage.join(self.folder, ASKED)))
        except FileNotFoundError as error:
            raise ClusterError(
                f"{self.folder}: the requests to rollout actors are missing"
            ) from error


def name_rollouts_folder(folder: RunFolder) -> str:
    """Return the folder of all requests of a run."""
    return storage.join(folder.path, ONLINE_FOLDER, ROLLOUTS)


def choose_poll_interval(folder: str) -> float:
    """Return the seconds between two checks of `folder`; in a bucket, each check is a request."""
    return 1.0 if storage.is_remote(folder) else 0.01


def find_open(rollouts: str) -> list[tuple[RolloutRequest, list[int]]]:
    """Return the requests below `rollouts` that lack units, with the missing unit indices.

    They are sorted by batch, the next one to train on first, then by attempt, the newest first.
    """
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
        except FileNotFoundError:  # the batch has just been stored
            continue
        if missing := [n for n in range(request.units) if unit_name(n) not in names]:
            found.append((request, missing))
    return sorted(found, key=lambda entry: (entry[0].number, -entry[0].attempt))


def delete_requests(folder: str) -> None:
    """Delete `folder` with all requests and samples below it.

    The requests are deleted first: otherwise a sampler would see a request that lacks units.
    """
    storage.delete_files(storage.list_files(folder, REQUEST))
    storage.delete_folder(folder)


def unit_name(index: int) -> str:
    """Return the file name of unit `index`."""
    return f"{index:05d}{UNIT}"


def find_missing_units(folder: str, units: int) -> list[int]:
    """Return the indices from 0 to `units` - 1 whose units are missing in `folder`."""
    names = {path.rpartition("/")[2] for path in storage.list_files(folder, UNIT)}
    return [n for n in range(units) if unit_name(n) not in names]


def write_unit(folder: str, index: int, arrays: Arrays) -> None:
    """Write unit `index` to `folder`, atomically."""
    storage.write(storage.join(folder, unit_name(index)), pack_arrays(arrays))


def read_unit(folder: str, index: int) -> Arrays | None:
    """Read unit `index` of `folder`; None if it is not there yet."""
    try:
        data = storage.read(storage.join(folder, unit_name(index)))
    except FileNotFoundError:
        return None
    return unpack_arrays(data)


def write_failure(folder: str, error: TrainrigError) -> None:
    """Record that sampling for `folder` failed; waiting workers then raise `error`."""
    entries = {"kind": type(error).__name__, "problem": str(error)}
    storage.write(storage.join(folder, FAILED), json.dumps(entries).encode())


def raise_failure(folder: str) -> None:
    """Raise the error that sampling for `folder` failed with, if it did."""
    try:
        entries: Mapping[str, Any] = json.loads(storage.read(storage.join(folder, FAILED)))
    except FileNotFoundError:
        return
    _raise(entries)


def _raise(entries: Mapping[str, Any]) -> NoReturn:
    raise getattr(errors, entries["kind"])(entries["problem"])
