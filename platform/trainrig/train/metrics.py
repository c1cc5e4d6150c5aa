"""The figures of a run: their names, where they are written, how they are read back.

A line of `metrics.jsonl` is `{"step", "attempt", "time", name: value, …}`. The step is the number
of updates done: the first line of a run says step 1. TensorBoard gets the same names.
"""

import json
import math
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

NAMES = {
    "train/loss": "nats per token, mean over the global batch",
    "train/grad_norm": "norm of the whole gradient before clipping",
    "train/lr": "learning rate of the step",
    "train/tokens": "targets trained on since step 0",
    "speed/tokens_per_second": "targets of the step over its wall time, all workers",
    "speed/step_seconds": "wall time of the step",
    "cluster/workers": "workers of the attempt",
}
METRICS = "metrics.jsonl"


class MetricsWriter:
    """Appends to a run folder's `metrics.jsonl` and TensorBoard events. One process writes."""

    def __init__(self, folder: str, attempt: int, resumed_step: int) -> None:
        from tensorboardX import SummaryWriter  # slow to import, and only this process needs it

        self._attempt = attempt
        path = Path(folder) / METRICS
        _cut_torn_line(path)
        self._file = path.open("a", buffering=1, encoding="utf-8")
        # purge_step hides what a dead attempt logged past the step that this one resumes from.
        self._board = SummaryWriter(
            str(Path(folder) / "tensorboard"),
            purge_step=resumed_step + 1,
            filename_suffix=f".attempt-{attempt}",
            flush_secs=5,
        )

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Log `values` (keys of NAMES) for `step`. A value that is no number is written as null."""
        unknown = set(values) - set(NAMES)
        assert not unknown, f"metrics without a unit in NAMES: {unknown}"
        shown = {name: value if math.isfinite(value) else None for name, value in values.items()}
        line = {"step": step, "attempt": self._attempt, "time": round(time.time(), 3), **shown}
        self._file.write(json.dumps(line) + "\n")
        for name, value in values.items():
            self._board.add_scalar(name, value, step)

    def close(self) -> None:
        """Flush and close both."""
        self._file.close()
        self._board.close()


def _cut_torn_line(path: Path) -> None:
    """What a dead attempt did not finish writing would spoil our first line too."""
    if path.exists():
        whole = path.read_bytes().rfind(b"\n") + 1
        os.truncate(path, whole)


def read_lines(folder: str) -> Iterator[dict[str, Any]]:
    """Every line of a run folder's metrics, in the order written; a torn last one is left out."""
    path = Path(folder) / METRICS
    if not path.exists():
        return
    with path.open(encoding="utf-8") as file:
        for line in file:
            if line.endswith("\n"):
                yield json.loads(line)


def series(folder: str) -> list[dict[str, Any]]:
    """One line a step, in order of steps: that of the newest attempt that took it."""
    newest: dict[int, dict[str, Any]] = {}
    for line in read_lines(folder):
        there = newest.get(line["step"])
        if there is None or line["attempt"] >= there["attempt"]:
            newest[line["step"]] = line
    return [newest[step] for step in sorted(newest)]
