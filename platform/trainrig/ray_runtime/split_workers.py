"""Work on splits in a Ray worker: what a task gets, and the row that it returns.

A task gets a few splits, and a reference to the phase that all tasks share. Each worker process
fetches the phase once.
"""

import dataclasses
import json
import pickle
import traceback
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from trainrig import errors
from trainrig.splits import PROBED, Phase, Split, Work

if TYPE_CHECKING:
    import pyarrow as pa


@dataclasses.dataclass(frozen=True)
class SharedPhase:
    """A phase that all its tasks share; a task carries a reference to it.

    Each worker process fetches the phase once, so tasks stay small if the phase is large.
    """

    call: str  # id of the call of `map_splits`
    phase: Any  # Ray's reference
    title: str

    @classmethod
    def put(cls, phase: Phase) -> "SharedPhase":
        """Put `phase` in Ray's object store."""
        import ray

        return cls(uuid.uuid4().hex, ray.put(phase), phase.title)


def make_row(split: Split) -> dict[str, Any]:
    """Convert a split to the row that is sent to a worker."""
    return {"name": split.name, "task": json.dumps(dict(split.task))}


def raise_error(row: Mapping[str, Any]) -> None:
    """Raise the error that `do_split` returned, if any."""
    if row["error"]:
        raise pickle.loads(row["error"])


_loaded: dict[str, tuple[Phase, Work]] = {}  # phase of the latest `map_splits`, in a Ray worker


def _load_work(shared: SharedPhase) -> tuple[Phase, Work]:
    """Return the phase and its work, cached for all splits of the same `map_splits` call."""
    if shared.call not in _loaded:
        import ray

        _loaded.clear()  # before loading, because both may be too large for the memory together
        phase: Phase = ray.get(shared.phase)
        _loaded[shared.call] = phase, phase.make_work()
    return _loaded[shared.call]


def do_split(row: Mapping[str, Any], shared: SharedPhase) -> dict[str, Any]:
    """Process one split of a phase; return its record.

    An error is returned as a part of the row. Ray would wrap it in pages of traceback, and Ray Data
    would pass over it.
    """
    split = Split(name=row["name"], task=json.loads(row["task"]))
    done = {"name": split.name, "counts": "{}", "files": "{}", "error": b"", "records": 0}
    try:
        phase, work = _load_work(shared)  # may raise TrainrigError as well
        if PROBED in split.task:
            done["records"] = work(split.task)[0]["records"]
        else:
            done |= phase.do(work, split).to_row()._asdict()
    except Exception as error:
        done["error"] = _pickle_error(error)
    return done


def _pickle_error(error: Exception) -> bytes:
    """Return `error` as the driver can raise it; a bug keeps its traceback as a note."""
    told = traceback.format_exc()
    if not isinstance(error, errors.TrainrigError):
        error.add_note(told)
    try:
        pickled = pickle.dumps(error)
        pickle.loads(pickled)
    except Exception:  # some classes of libraries cannot be pickled
        return pickle.dumps(RuntimeError(told))
    return pickled


def _do_splits(rows: "pa.Table", shared: SharedPhase) -> Iterator["pa.Table"]:
    """Process the splits in `rows`, and yield the record of each one when it is done."""
    import pyarrow as pa

    for row in rows.to_pylist():
        yield pa.Table.from_pylist([do_split(row, shared)])


def name_function(shared: SharedPhase) -> Callable[["pa.Table"], Iterator["pa.Table"]]:
    """Return a function that processes splits, with the title by which Ray names its tasks."""

    def process(rows: "pa.Table") -> Iterator["pa.Table"]:
        return _do_splits(rows, shared)

    process.__name__ = process.__qualname__ = shared.title
    return process


class _SplitActor:
    """Worker with a GPU, which loads its work once for all splits that it processes."""

    def __init__(self, shared: SharedPhase) -> None:
        self._shared = shared

    def __call__(self, rows: "pa.Table") -> Iterator["pa.Table"]:
        return _do_splits(rows, self._shared)


def name_actor(title: str) -> type[_SplitActor]:
    """Return a class of workers with the title by which Ray names its actors."""
    return type(title, (_SplitActor,), {})
