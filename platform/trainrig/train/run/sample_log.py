"""Which samples each step was trained on, as each worker saw it.

A file for each rank of each attempt, `samples/attempt-0001/rank-00000.bin`, of (step, sample) pairs
of int64: 16 bytes a sequence, beside some kilobytes of tokens. In a bucket it is a folder
(append_log.py). It is evidence, not state: nothing is resumed from it.
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from trainrig import storage
from trainrig.processes.append_log import open_appender
from trainrig.tokens.batches import MicroBatch
from trainrig.train.run.run_folder import RunFolder

PAIR = np.dtype([("step", "<i8"), ("sample", "<i8")])
# s, in a bucket: of 8,000 ranks each flush is 8,000 requests. What counts is flushed with every
# checkpoint; steps that were lost with their ranks are taken, and logged, again.
FLUSH_SECONDS = 60.0


class SampleLog:
    """Appends what one rank trains on."""

    def __init__(self, folder: str, attempt: int, rank: int) -> None:
        path = storage.join(folder, "samples", f"attempt-{attempt:04d}", f"rank-{rank:05d}.bin")
        self._log = open_appender(path, "part", FLUSH_SECONDS)

    def write(self, step: int, trained: Iterable[MicroBatch]) -> None:
        """Log that update number `step` (from 1) was made with the micro-batches `trained`."""
        samples = [micro.samples for micro in trained]
        pairs = np.empty(sum(len(each) for each in samples), PAIR)
        pairs["step"] = step
        pairs["sample"] = np.concatenate(samples) if samples else []
        self._log.write(pairs.tobytes())

    def flush(self) -> None:
        """Return once all that was written lies in the run folder. Raises ClusterError."""
        self._log.flush()

    def close(self) -> None:
        """Flush, and write no more."""
        self._log.close()


def read_trained_samples(folder: RunFolder) -> dict[int, list[int]]:
    """Step → the samples, sorted, that the final model's step of that number was made with.

    A step that was taken again after a restart counts as the newest attempt took it: what an
    earlier one made of it went with its workers.
    """
    history: dict[int, list[int]] = {}
    for attempt in folder.read_attempts():
        pairs = _read_pairs(folder, attempt.number)
        history = {step: at for step, at in history.items() if step <= attempt.resumed_step}
        for step in np.unique(pairs["step"]):
            history[int(step)] = sorted(pairs["sample"][pairs["step"] == step].tolist())
    return history


def _read_pairs(folder: RunFolder, attempt: int) -> NDArray[np.void]:
    """All whole pairs of one attempt; a torn last one is left out."""
    parts = [np.empty(0, PAIR)]
    for path in storage.list_files(
        storage.join(folder.path, "samples", f"attempt-{attempt:04d}"), ".bin"
    ):
        data = storage.read(path)
        parts.append(np.frombuffer(data[: len(data) - len(data) % PAIR.itemsize], PAIR))
    return np.concatenate(parts)
