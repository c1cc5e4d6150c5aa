"""The metrics of a run: their names, how they are written, and how they are read back.

A line of `metrics.jsonl` is `{"step", "attempt", "time", name: value, …}`. The step is the number
of updates made: the first line of a run has step 1. Held-out losses have lines of their own. So do
the scores of `training.evaluations`, written as soon as they are known, with the attempt that saved
the scored checkpoint.
A step that was repeated after a failure has a line for each attempt that made it. `read_series`
returns the lines that count: one per step, of the newest attempt. `read_lines` returns all, to
account for the time spent. TensorBoard gets the same names, and hides repeated steps. In a bucket,
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
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from trainrig import storage
from trainrig.processes import append_log

if TYPE_CHECKING:  # readers of metrics need no torch
    from trainrig.train.evaluations import ScoredCheckpoint
    from trainrig.train.loss_table import Loss

log = logging.getLogger(__name__)


class Metric(NamedTuple):
    """One metric of a run: a row of the table in metrics.md."""

    name: str  # Words in capitals are placeholders.
    unit: str
    source: str  # Measured by, and when.
    meaning: str


TABLE_TEXT = files("trainrig.train.run").joinpath("metrics.md").read_text("utf-8")
_CELLS = re.compile(r"\| `(.+?)` \| (.*?) \| (.+?) \| (.+) \|")
TABLE = tuple(Metric(*cells) for cells in _CELLS.findall(TABLE_TEXT))
_FAMILY = re.compile("[A-Z]+")
NAMES = {metric.name: metric.meaning for metric in TABLE if not _FAMILY.search(metric.name)}
LOSSES = re.compile(
    "|".join(
        _FAMILY.sub(".+", re.escape(metric.name)) for metric in TABLE if _FAMILY.search(metric.name)
    )
    + "|eval/loss",
    re.DOTALL,
)
_PATTERNS = tuple(  # placeholders of a name become groups of its pattern
    (metric, re.compile(_FAMILY.sub(lambda found: f"(?P<{found[0]}>.+)", metric.name), re.DOTALL))
    for metric in TABLE
)
METRICS = "metrics.jsonl"
BOARD = "tensorboard"


def describe(name: str) -> tuple[str, dict[str, str], str]:
    """Return the name in TABLE of the metric `name`, its labels, and its description with unit.

    The labels map each placeholder, in lower case, to what it stands for. Raises KeyError for a
    name that TABLE does not have.
    """
    # "eval/loss" is also a metric itself, although a source may have any name.
    matches = ((metric, pattern.fullmatch(name)) for metric, pattern in _PATTERNS)
    found = sorted(((m, f) for m, f in matches if f), key=lambda pair: len(pair[1].groupdict()))
    if not found:
        raise KeyError(name)
    metric, match = found[0]
    labels = {key.lower(): value for key, value in match.groupdict().items()}
    unit = f" ({metric.unit})" if metric.unit else ""
    return metric.name, labels, f"{metric.meaning[0].upper()}{metric.meaning[1:]}{unit}."


def list_loss_values(split: str, loss: Loss) -> dict[str, float]:
    """Return the metrics of `loss`: total, by source, by term, and diagnostics.

    Terms are left out if there is only one, and sources if training has only one. `split`: "train"
    or "eval".
    """
    values = {f"{split}/loss": loss.total}
    if split == "train" and loss.variance is not None:
        values["train/loss_variance"] = loss.variance
    if split == "eval" or len(loss.by_source) > 1:
        values |= {f"{split}/{source}/loss": value for source, value in loss.by_source.items()}
    if len(loss.terms) > 1:
        values |= {f"{split}/terms/{name}": value for name, value in loss.terms.items()}
    values |= {f"{split}/diagnostics/{name}": value for name, value in loss.diagnostics.items()}
    return values


def measure_expert_loads(loss: Loss, all_experts: bool) -> dict[str, float]:
    """Return the highest and lowest load of experts; with `all_experts`, also every expert's load.

    A load is the number of tokens of the global batch sent to an expert, over the mean of its
    layer: 1 is even. Returns {} for a model without experts.
    """
    by_expert = {
        f"experts/{name.split('/')[1]}/{expert}/load": tokens * len(counts) / max(1, sum(counts))
        for name, counts in loss.counts.items()
        for expert, tokens in enumerate(counts)
    }
    if not by_expert:
        return {}
    loads = by_expert.values()
    ends = {"experts/highest_load": max(loads), "experts/lowest_load": min(loads)}
    return ends | by_expert if all_experts else ends


class MetricsWriter:
    """Writer of a run folder's `metrics.jsonl` and TensorBoard events, in a single process."""

    def __init__(self, folder: str, attempt: int, resumed_step: int) -> None:
        self._attempt = attempt
        self._lines = append_log.open_appender(
            storage.join(folder, METRICS), f"attempt-{attempt:04d}"
        )
        self._board = _Board(storage.join(folder, BOARD), attempt, resumed_step)
        run_file = storage.join(folder, "run.toml")
        if storage.exists(run_file):
            self._board.add_run_file(storage.read(run_file).decode(), resumed_step)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Log `values` for `step`; their names must be in TABLE.

        A value that is not finite is written as null.
        """
        unknown = {n for n in values if n not in NAMES and not LOSSES.fullmatch(n)}
        assert not unknown, f"metrics without a unit in NAMES: {unknown}"
        shown = {name: value if math.isfinite(value) else None for name, value in values.items()}
        line = {"step": step, "attempt": self._attempt, "time": round(time.time(), 3), **shown}
        self._lines.write((json.dumps(line) + "\n").encode())
        self._board.add(step, values)

    def flush(self) -> None:
        """Wait until everything is stored in the run folder. Raise ClusterError if that fails.

        Call this before a checkpoint is saved: no later attempt repeats the steps before it.
        """
        self._lines.flush()
        self._board.flush()

    def close(self) -> None:
        """Flush and close both outputs."""
        self._lines.close()
        self._board.close()


def append_scores(folder: str, scored: ScoredCheckpoint) -> None:
    """Append the scores of a checkpoint to the metrics.

    Other processes than the MetricsWriter's call this, at any time. So TensorBoard shows them as a
    run of their own below the run's.
    """
    values: dict[str, float] = {}
    for name, score in scored.scores.items():
        if "/" not in name:  # headline scores are also listed under their full names
            continue
        values[f"scores/{scored.evaluation}/{name}"] = score.value
        if score.error is not None:
            values[f"scores/{scored.evaluation}/{name}/error"] = score.error
    shown = {name: value if math.isfinite(value) else None for name, value in values.items()}
    # One line for each score: several processes append, which needs short lines.
    for name, value in shown.items():
        line = {"step": scored.step, "attempt": scored.attempt, "time": round(time.time(), 3)}
        append_log.append_line(
            storage.join(folder, METRICS), (json.dumps(line | {name: value}) + "\n").encode()
        )
    place = storage.join(folder, BOARD, scored.evaluation)
    board = _Board(place, scored.attempt, resumed_step=scored.step - 1)
    board.add(scored.step, values)
    board.close()


class _Board:
    """TensorBoard events. For a bucket, they are written to a local file, which is then copied."""

    def __init__(self, folder: str, attempt: int, resumed_step: int) -> None:
        # Slow to import, and needed in one process only.
        from tensorboardX import SummaryWriter
        from tensorboardX.proto.summary_pb2 import Summary
        from tensorboardX.summary import scalar

        self._summary = Summary
        self._scalar = scalar
        self._tags = dict[str, str]()
        self._folder = folder
        self._local: tempfile.TemporaryDirectory[str] | None = None
        if storage.is_remote(folder):
            self._local = tempfile.TemporaryDirectory(prefix="trainrig-")
        # purge_step hides what a dead attempt logged after the step that this one resumes from.
        self._events = SummaryWriter(
            self._local.name if self._local else folder,
            purge_step=resumed_step + 1,
            filename_suffix=f".attempt-{attempt}",
            flush_secs=5,
        )
        self._reported = False
        # A full disk would end the writer's thread, and then adding to its queue would block
        # forever. What these files lack is in `metrics.jsonl`.
        writer = self._events.file_writer.event_writer._ev_writer
        for name in ("write_event", "flush", "close"):
            setattr(writer, name, self._make_lenient(getattr(writer, name)))

    def _make_lenient(self, act: Callable[..., Any]) -> Callable[..., Any]:
        def lenient(*arguments: Any) -> Any:
            try:
                return act(*arguments)
            except OSError as problem:
                if not self._reported:
                    log.warning(
                        "%s: some TensorBoard events are not written: %s", self._folder, problem
                    )
                self._reported = True
                return None

        return lenient

    def add(self, step: int, values: Mapping[str, float]) -> None:
        # A single event for all values: one per value took longer than all other logging of a
        # step, because each passes through a queue to a thread with checksums in pure Python.
        summary = self._summary()
        for name, value in values.items():
            # TensorBoard allows fewer characters than names of sources may have
            if name not in self._tags:
                self._tags[name] = self._scalar(name, 0.0).value[0].tag
            summary.value.add(tag=self._tags[name], simple_value=value)
        self._events.file_writer.add_summary(summary, step)

    def add_run_file(self, content: str, step: int) -> None:
        """Show the run file, with all defaults, under TensorBoard's tab `Text`."""
        self._events.add_text("run.toml", f"```toml\n{content}```", step)

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
    """Return the metrics lines of all updates, in the order written, repeated ones included."""
    return (line for line in _read_all_lines(folder) if "train/loss" in line)


def read_series(folder: str) -> list[dict[str, Any]]:
    """Return one metrics line per update, of the newest attempt that made it, in order of steps."""
    return _select_newest(read_lines(folder))


def read_held_out_series(folder: str) -> list[dict[str, Any]]:
    """Return one line of held-out losses per step, of the newest attempt, in order of steps."""
    return _select_newest(line for line in _read_all_lines(folder) if "eval/loss" in line)


def read_merged_series(folder: str) -> list[dict[str, Any]]:
    """Return one line per step with all its metrics, in order of steps.

    It joins the lines of the update, of the held-out losses and of the scores of that step. Where
    an update or a held-out loss was repeated, those of the newest attempt count.
    """
    merged: dict[int, dict[str, Any]] = {}
    lines = list(_read_all_lines(folder))
    scores = [line for line in lines if "train/loss" not in line and "eval/loss" not in line]
    held_out = _select_newest(line for line in lines if "eval/loss" in line)
    updates = _select_newest(line for line in lines if "train/loss" in line)
    for line in (*scores, *held_out, *updates):  # the attempt and the time are the update's
        merged.setdefault(line["step"], {}).update(line)
    return [merged[step] for step in sorted(merged)]


def wall_seconds(line: Mapping[str, Any]) -> float:
    """Return the seconds of the update of `line`, with everything since the one before.

    Runs of earlier versions have this value under the name of the step time.
    """
    return float(line.get("train/wall_seconds", line["train/step_seconds"]))


def measure_attempt_seconds(folder: str, attempt: int) -> float:
    """Return the training seconds of an attempt; 0 if it made no update.

    They last from the beginning of its first update to the end of its last one, or of the held-out
    loss after that.
    """
    updates = [line for line in read_lines(folder) if line["attempt"] == attempt]
    if not updates:
        return 0.0
    measured = [line for line in read_held_out_series(folder) if line["attempt"] == attempt]
    began = updates[0]["time"] - wall_seconds(updates[0])
    return float(max(line["time"] for line in updates + measured) - began)


def is_measured(folder: str, step: int) -> bool:
    """Return whether the metrics of the run in `folder` have the held-out loss at `step`."""
    return any(line["step"] == step for line in read_held_out_series(folder))


def _read_all_lines(folder: str) -> Iterator[dict[str, Any]]:
    path = storage.join(folder, METRICS)
    for line in append_log.read_lines(path):
        try:
            yield json.loads(line)
        except ValueError:
            append_log.warn_torn_line(path, line)


def _select_newest(lines: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    newest: dict[int, dict[str, Any]] = {}
    for line in lines:
        there = newest.get(line["step"])
        if there is None or line["attempt"] >= there["attempt"]:
            newest[line["step"]] = line
    return [newest[step] for step in sorted(newest)]
