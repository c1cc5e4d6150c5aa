"""Batches that a run made itself, as they lie in its folder (see train/online_batches.py)."""

import hashlib
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from trainrig import storage
from trainrig.errors import DataError
from trainrig.tokens.batches import MicroBatch
from trainrig.train.run.run_folder import RunFolder

RECORD = "batch.json"
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

    @classmethod
    def read(cls, folder: str) -> "StoredBatch | None":
        """The one at `folder`; None: nobody has made it whole."""
        path = storage.join(folder, RECORD)
        if not storage.exists(path):
            return None
        entries = json.loads(storage.read(path))
        sequences = {name: tuple(entries[name]) for name in ("sources", "files")}
        return cls(folder, **entries | sequences)

    def micro_batch(self, index: int) -> MicroBatch:
        """Micro-batch `index`. Raises DataError if it is not what was stored."""
        path = storage.join(self.folder, self.files[index]["name"])
        data = storage.read(path)
        if hashlib.sha256(data).hexdigest() != self.files[index]["sha256"]:
            raise DataError(f"{path}: other bytes than were written; restore the file")
        with np.load(io.BytesIO(data), allow_pickle=False) as held:
            arrays = {name.removeprefix("array."): held[name] for name in held.files}
        samples, sources, pieces = (arrays.pop(name) for name in ("samples", "sources", "pieces"))
        return MicroBatch(arrays, samples, sources, pieces)


def stored_batches(folder: RunFolder) -> list[StoredBatch]:
    """All batches that a run made and stored, in the order of their steps."""
    paths = storage.list_files(storage.join(folder.path, FOLDER), RECORD)
    found = [StoredBatch.read(path.rpartition("/")[0]) for path in paths]
    return sorted((each for each in found if each), key=lambda batch: (batch.step, batch.number))
