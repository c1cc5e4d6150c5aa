"""Records of the data that each step was trained on: logged samples, and batches made by the run.

Each rank of each attempt writes a file `samples/attempt-0001/rank-00000.bin` of int64 pairs
(step, sample): 16 bytes a sequence, compared with kilobytes of tokens. In a bucket, it is a
folder (append_log.py). The samples are evidence, not state: nothing is resumed from them. A
batch that the run made itself is stored whole (rl/online_batches.py), and read again by a resumed
run.
"""

import hashlib
import io
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainrig import storage
from trainrig.errors import DataError
from trainrig.processes.append_log import open_appender
from trainrig.tokens.batches import MicroBatch
from trainrig.train.run.run_folder import RunFolder

PAIR = np.dtype([("step", "<i8"), ("sample", "<i8")])
# Seconds between flushes to a bucket: with 8,000 ranks, each flush is 8,000 requests. Every
# checkpoint flushes too; steps lost with their ranks are made, and logged, again.
FLUSH_SECONDS = 60.0


class SampleLog:
    """Log of the samples that one rank trains on."""

    def __init__(self, folder: str, attempt: int, rank: int) -> None:
        path = storage.join(folder, "samples", f"attempt-{attempt:04d}", f"rank-{rank:05d}.bin")
        self._log = open_appender(path, "part", FLUSH_SECONDS)

    def write(self, step: int, trained: Iterable[MicroBatch]) -> None:
        """Log that update number `step` (from 1) was made from the micro-batches `trained`."""
        samples = [micro.samples for micro in trained]
        pairs = np.empty(sum(len(array) for array in samples), PAIR)
        pairs["step"] = step
        pairs["sample"] = np.concatenate(samples) if samples else []
        self._log.write(pairs.tobytes())

    def flush(self) -> None:
        """Wait until everything is stored in the run folder. Raise ClusterError if that fails."""
        self._log.flush()

    def close(self) -> None:
        """Flush and close the log."""
        self._log.close()


def read_trained_samples(folder: RunFolder) -> dict[int, list[int]]:
    """Return the samples, sorted, that each step of the final model was trained on, by step.

    Of a step that was repeated after a restart, the newest attempt's samples count: the result of
    an earlier attempt was lost with its workers.
    """
    history: dict[int, list[int]] = {}
    for attempt in folder.read_attempts():
        pairs = _read_pairs(folder, attempt.number)
        history = {step: at for step, at in history.items() if step <= attempt.resumed_step}
        for step in np.unique(pairs["step"]):
            history[int(step)] = sorted(pairs["sample"][pairs["step"] == step].tolist())
    return history


def _read_pairs(folder: RunFolder, attempt: int) -> NDArray[np.void]:
    """Read all complete pairs of one attempt; an incomplete last one is dropped."""
    parts = [np.empty(0, PAIR)]
    samples = storage.join(folder.path, "samples", f"attempt-{attempt:04d}")
    for data in storage.read_files(storage.list_files(samples, ".bin")):
        parts.append(np.frombuffer(data[: len(data) - len(data) % PAIR.itemsize], PAIR))
    return np.concatenate(parts)


RECORD = "batch.json"
LEFT = "left"  # file with what the next batch continues with
ONLINE_FOLDER = "online"


@dataclass(frozen=True)
class StoredBatch:
    """Batch that is stored completely in the run folder."""

    folder: str
    number: int
    step: int  # updates made before the batch
    updates: int  # updates that are made from it
    attempt: int  # the attempt that made it
    sources: tuple[str, ...]  # names of the sources, which micro-batches index
    files: tuple[Mapping[str, str], ...]  # name and SHA-256 of each micro-batch's file
    denominators: Mapping[str, int]
    waves: int = 1  # sampling waves that the batch took
    # Name and SHA-256 of the file that the next batch continues with; None: there is none.
    left: Mapping[str, str] | None = None

    @classmethod
    def read(cls, folder: str) -> "StoredBatch | None":
        """Read the batch at `folder`; None if it is not complete."""
        try:
            entries = json.loads(storage.read(storage.join(folder, RECORD)))
        except FileNotFoundError:
            return None
        sequences = {name: tuple(entries[name]) for name in ("sources", "files")}
        return cls(folder, **entries | sequences)

    def read_micro_batch(self, index: int) -> MicroBatch:
        """Read micro-batch `index`. Raise DataError if its bytes differ from those stored."""
        held = self._read(self.files[index])
        arrays = {name.removeprefix("array."): array for name, array in held.items()}
        samples, sources, pieces = (arrays.pop(name) for name in ("samples", "sources", "pieces"))
        return MicroBatch(arrays, samples, sources, pieces)

    def read_left(self) -> Mapping[str, NDArray[Any]]:
        """Read what the next batch continues with. Raise DataError as `read_micro_batch` does."""
        return self._read(self.left) if self.left else {}

    def _read(self, file: Mapping[str, str]) -> dict[str, NDArray[Any]]:
        path = storage.join(self.folder, file["name"])
        data = storage.read(path)
        if hashlib.sha256(data).hexdigest() != file["sha256"]:
            raise DataError(f"{path}: the bytes differ from those written; restore the file")
        return unpack_arrays(data)


def pack_arrays(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Return the bytes of an .npz file with `arrays` by name."""
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **arrays)
    return file.getvalue()


def unpack_arrays(data: bytes) -> dict[str, NDArray[Any]]:
    """Return the arrays of an .npz file by name."""
    with np.load(io.BytesIO(data), allow_pickle=False) as held:
        return {name: held[name] for name in held.files}


def list_stored_batches(folder: RunFolder) -> list[StoredBatch]:
    """Return all complete stored batches of a run, in the order of their steps."""
    paths = storage.list_files(storage.join(folder.path, ONLINE_FOLDER), RECORD)
    folders = [path.rpartition("/")[0] for path in paths]
    found = storage.map_files(StoredBatch.read, folders)
    return sorted((batch for batch in found if batch), key=lambda batch: (batch.step, batch.number))
