"""Log of the samples that each step was trained on, as each rank saw them.

Each rank of each attempt writes a file `samples/attempt-0001/rank-00000.bin` of int64 pairs (step,
sample): 16 bytes a sequence, compared with kilobytes of tokens. In a bucket, it is a folder
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
    for path in storage.list_files(
        storage.join(folder.path, "samples", f"attempt-{attempt:04d}"), ".bin"
    ):
        data = storage.read(path)
        parts.append(np.frombuffer(data[: len(data) - len(data) % PAIR.itemsize], PAIR))
    return np.concatenate(parts)
