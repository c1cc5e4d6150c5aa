"""Batches that a run made itself, as stored in its folder (see train/online_batches.py)."""

import hashlib
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainrig import storage
from trainrig.errors import DataError
from trainrig.tokens.batches import MicroBatch
from trainrig.train.run.run_folder import RunFolder

RECORD = "batch.json"
LEFT = "left"  # file with what the next batch continues with
FOLDER = "online"


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
        path = storage.join(folder, RECORD)
        if not storage.exists(path):
            return None
        entries = json.loads(storage.read(path))
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
    paths = storage.list_files(storage.join(folder.path, FOLDER), RECORD)
    found = [StoredBatch.read(path.rpartition("/")[0]) for path in paths]
    return sorted((batch for batch in found if batch), key=lambda batch: (batch.step, batch.number))
