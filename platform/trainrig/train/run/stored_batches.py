"""Batches that a run made itself, as they lie in its folder (see train/online_batches.py)."""

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

RECORD, LEFT = "batch.json", "left"  # file of what the next batch goes on with
FOLDER = "online"


@dataclass(frozen=True)
class StoredBatch:
    """A batch that lies whole in the run folder."""

    folder: str
    number: int
    step: int  # updates made before it
    updates: int  # steps that it is for
    attempt: int  # that made it
    sources: tuple[str, ...]  # names that the `sources` of micro-batches number
    files: tuple[Mapping[str, str], ...]  # name and SHA-256, by micro-batch
    denominators: Mapping[str, int]
    waves: int = 1  # of sampling that it took
    # Name and SHA-256 of what it left for the next to go on with; None: nothing.
    left: Mapping[str, str] | None = None

    @classmethod
    def read(cls, folder: str) -> "StoredBatch | None":
        """The one at `folder`; None: nobody has made it whole."""
        path = storage.join(folder, RECORD)
        if not storage.exists(path):
            return None
        entries = json.loads(storage.read(path))
        sequences = {name: tuple(entries[name]) for name in ("sources", "files")}
        return cls(folder, **entries | sequences)

    def read_micro_batch(self, index: int) -> MicroBatch:
        """Micro-batch `index`. Raises DataError if it is not what was stored."""
        held = self._read(self.files[index])
        arrays = {name.removeprefix("array."): array for name, array in held.items()}
        samples, sources, pieces = (arrays.pop(name) for name in ("samples", "sources", "pieces"))
        return MicroBatch(arrays, samples, sources, pieces)

    def read_left(self) -> Mapping[str, NDArray[Any]]:
        """What it left for the next to go on with. Raises DataError as `read_micro_batch` does."""
        return self._read(self.left) if self.left else {}

    def _read(self, file: Mapping[str, str]) -> dict[str, NDArray[Any]]:
        path = storage.join(self.folder, file["name"])
        data = storage.read(path)
        if hashlib.sha256(data).hexdigest() != file["sha256"]:
            raise DataError(f"{path}: other bytes than were written; restore the file")
        return unpack_arrays(data)


def pack_arrays(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """A file that holds `arrays` by name."""
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **arrays)
    return file.getvalue()


def unpack_arrays(data: bytes) -> dict[str, NDArray[Any]]:
    """The arrays of such a file."""
    with np.load(io.BytesIO(data), allow_pickle=False) as held:
        return {name: held[name] for name in held.files}


def list_stored_batches(folder: RunFolder) -> list[StoredBatch]:
    """All batches that a run made and stored, in the order of their steps."""
    paths = storage.list_files(storage.join(folder.path, FOLDER), RECORD)
    found = [StoredBatch.read(path.rpartition("/")[0]) for path in paths]
    return sorted((each for each in found if each), key=lambda batch: (batch.step, batch.number))
