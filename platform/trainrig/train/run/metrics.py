"""The figures of a run: their names, where they are written, how they are read back.

A line of `metrics.jsonl` is `{"step", "attempt", "time", name: value, …}`. The step is the number
of updates done: the first line of a run says step 1. Held-out losses are a line of their own.
A step that was taken again after a fault has a line of each attempt that took it: `series` is the
one reader of what counts, a line a step, of the newest attempt; `read_lines` gives all, for what
was spent on them. TensorBoard gets the same names, and hides what was taken again. In a bucket,
`metrics.jsonl` is a folder (append_log.py).
"""

from __future__ import annotations

import json
import logging
import math
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainrig import storage
from trainrig.processes import append_log

if TYPE_CHECKING:  # whoever reads metrics needs no torch
    from trainrig.train.loss_table import Loss

log = logging.getLogger(__name__)
NAMES = {
    "train/loss": "of the global batch; of next tokens: nats per token",
    "train/grad_norm": "norm of the whole gradient before clipping",
    "train/lr": "learning rate of the step",
    "train/tokens": "targets trained on since step 0",
    "speed/tokens_per_second": "targets of the step over its wall time, all workers",
    "speed/step_seconds": "wall time of the step",
    "cluster/workers": "workers of the attempt",
}
# `eval/loss` of all held-out rows together, `eval/SOURCE/loss` and `train/SOURCE/loss` of the rows
# of one source, `train/terms/TERM` of an objective of several terms, before a term's weight.
LOSSES = re.compile(r"eval/loss|(train|eval)/(.+/loss|terms/.+)", re.DOTALL)
METRICS = "metrics.jsonl"
BOARD = "tensorboard"


def loss_values(split: str, loss: Loss) -> dict[str, float]:
    """The metrics of `loss`: of all rows, by source, and by term where there are several.

    `split`: "train" or "eval". Where training has one source, that is the loss itself.
    """
    values = {f"{split}/loss": loss.total}
    if split == "eval" or len(loss.by_source) > 1:
        values |= {f"{split}/{source}/loss": value for source, value in loss.by_source.items()}
    if len(loss.terms) > 1:
        values |= {f"{split}/terms/{name}": value for name, value in loss.terms.items()}
    return values


class MetricsWriter:
    """Appends to a run folder's `metrics.jsonl` and TensorBoard events. One process writes."""

    def __init__(self, folder: str, attempt: int, resumed_step: int) -> None:
        self._attempt = attempt
        self._lines = append_log.open_appender(
            storage.join(folder, METRICS), f"attempt-{attempt:04d}"
        )
        self._board = _Board(storage.join(folder, BOARD), attempt, resumed_step)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Log `values`, named as NAMES or LOSSES say, for `step`.

        A value that is no number is written as null.
        """
        unknown = {n for n in values if n not in NAMES and not LOSSES.fullmatch(n)}
        assert not unknown, f"metrics without a unit in NAMES: {unknown}"
        shown = {name: value if math.isfinite(value) else None for name, value in values.items()}
        line = {"step": step, "attempt": self._attempt, "time": round(time.time(), 3), **shown}
        self._lines.write((json.dumps(line) + "\n").encode())
        self._board.add(step, values)

    def flush(self) -> None:
        """Return once all that was written lies in the run folder. Raises ClusterError.

        To be called before a checkpoint is made: no later attempt takes the steps before it again.
        """
        self._lines.flush()
        self._board.flush()

    def close(self) -> None:
        """Flush and close both."""
        self._lines.close()
        self._board.close()


class _Board:
    """TensorBoard's events. For a bucket they are written to a local file, which is copied."""

    def __init__(self, folder: str, attempt: int, resumed_step: int) -> None:
        from tensorboardX import SummaryWriter  # slow to import, and only one process needs it

        self._folder = folder
        self._local: tempfile.TemporaryDirectory[str] | None = None
        if folder.startswith(storage.S3):
            self._local = tempfile.TemporaryDirectory(prefix="trainrig-")
        # purge_step hides what a dead attempt logged past the step that this one resumes from.
        self._events = SummaryWriter(
            self._local.name if self._local else folder,
            purge_step=resumed_step + 1,
            filename_suffix=f".attempt-{attempt}",
            flush_secs=5,
        )
        self._told = False
        # A disk that is full would end the thread that writes, and whoever adds to its queue then
        # waits for ever. What these files lack is in `metrics.jsonl`.
        writer = self._events.file_writer.event_writer._ev_writer
        for name in ("write_event", "flush", "close"):
            setattr(writer, name, self._lenient(getattr(writer, name)))

    def _lenient(self, act: Callable[..., Any]) -> Callable[..., Any]:
        def lenient(*arguments: Any) -> Any:
            try:
                return act(*arguments)
            except OSError as problem:
                if not self._told:
                    log.warning("%s: not all is written there: %s", self._folder, problem)
                self._told = True
                return None

        return lenient

    def add(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._events.add_scalar(name, value, step)

    def flush(self) -> None:
        if self._local:
            self._events.flush()
            self._copy(self._local.name)

    def close(self) -> None:
        self._events.close()
        if self._local:
            self._copy(self._local.name)
            self._local.cleanup()

    def _copy(self, local: str) -> None:
        for path in Path(local).iterdir():
            storage.write(storage.join(self._folder, path.name), path.read_bytes())


def read_lines(folder: str) -> Iterator[dict[str, Any]]:
    """The line of every update in a run folder's metrics, in the order written."""
    return (line for line in _all_lines(folder) if "train/loss" in line)


def series(folder: str) -> list[dict[str, Any]]:
    """One line an update, in order of steps: that of the newest attempt that took it."""
    return _newest(read_lines(folder))


def held_out_series(folder: str) -> list[dict[str, Any]]:
    """The lines of held-out losses, in order of steps, each step's as the newest attempt has it."""
    return _newest(line for line in _all_lines(folder) if "eval/loss" in line)


def attempt_seconds(folder: str, attempt: int) -> float:
    """What an attempt trained for: from the beginning of its first update to the end of its last,
    or of the held-out loss after it; 0 if it made none."""
    updates = [line for line in read_lines(folder) if line["attempt"] == attempt]
    if not updates:
        return 0.0
    measured = [line for line in held_out_series(folder) if line["attempt"] == attempt]
    began = updates[0]["time"] - updates[0]["speed/step_seconds"]
    return float(max(line["time"] for line in updates + measured) - began)


def is_measured(folder: str, step: int) -> bool:
    """Whether the held-out loss at `step` is among the metrics of the run in `folder`."""
    return any(line["step"] == step for line in held_out_series(folder))


def _all_lines(folder: str) -> Iterator[dict[str, Any]]:
    path = storage.join(folder, METRICS)
    for line in append_log.lines(path):
        try:
            yield json.loads(line)
        except ValueError:
            append_log.passed_over(path, line)


def _newest(lines: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    newest: dict[int, dict[str, Any]] = {}
    for line in lines:
        there = newest.get(line["step"])
        if there is None or line["attempt"] >= there["attempt"]:
            newest[line["step"]] = line
    return [newest[step] for step in sorted(newest)]
