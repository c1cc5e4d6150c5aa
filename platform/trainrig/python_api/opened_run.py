"""Opened run folders: settings, metrics, events and batches of a training run, as Arrow tables."""

import json
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa

from trainrig import storage
from trainrig.errors import DataError
from trainrig.python_api.html_tables import render_html_table
from trainrig.runs.run_list import RUN_FILE, read_listed_run, read_run_state
from trainrig.runs.step_trace import trace
from trainrig.train.run import metrics
from trainrig.train.run.run_folder import RunFolder


@dataclass(frozen=True)
class OpenedRun:
    """A training run in its folder, finished or under way; each call reads the files again.

    The tables are Arrow's: `.to_pandas()` makes a data frame of one.
    """

    path: str  # run folder
    settings: Mapping[str, Any]  # the run file

    @property
    def state(self) -> str:
        """State: "finished", "running", "stopped", "failed", or "left" if its driver died."""
        return read_run_state(self.path)

    def metrics(self) -> pa.Table:
        """Return all metrics, one row for each step, in order.

        A row has the metrics of the update, and the held-out losses and scores of that step.
        Metrics that a step did not log are null. Of a step that was repeated, the newest attempt
        counts. The page `docs/metrics.md` describes the columns.

        >>> run = trainrig.open_run("model")
        >>> run.metrics().to_pandas().plot(x="step", y="train/loss")
        """
        return build_table(metrics.read_merged_series(self.path), ("step", "attempt", "time"))

    def events(self) -> pa.Table:
        """Return all events, one row each: starts, failures, restarts, checkpoints and the end.

        `time` is in seconds since 1970. Details that an event does not have are null.

        >>> trainrig.open_run("model").events().select(["time", "event"]).to_pandas()
        """
        events = list(RunFolder(self.path).read_events())
        return build_table(events, ("time", "event"))

    def batch(self, step: int) -> pa.Table:
        """Return the batch of the update number `step`, from 1: one row for each sequence.

        The columns are `micro_batch`, `row`, `sample`, `source`, `answer`, `epoch`, `targets`,
        `text`, `ids`, `target_ids` and `documents`, which lists the documents with their URLs. The
        batch is computed again from the run file and the token shards, as `trainrig trace` does.

        >>> trainrig.open_run("model").batch(1).select(["source", "text"]).to_pandas()
        """
        traced = trace(self.path, step)
        rows = [
            {**asdict(sequence), "text": traced.encoder.decode(sequence.ids)}
            for sequence in traced.sequences
        ]
        return build_table(rows, ("micro_batch", "row", "sample", "source", "text"))

    def _repr_html_(self) -> str:
        run = read_listed_run(self.path)
        rows = {
            "stage": run.verb,
            "state": run.state,
            "step": f"{run.step:,} of {run.steps:,}",
            "loss": "none yet" if run.loss is None else run.loss,
            "best held-out loss": "none" if run.best_held_out is None else run.best_held_out,
            "tokens": run.tokens,
        }
        return render_html_table(self.path, rows)


def open_run(path: str | os.PathLike[str]) -> OpenedRun:
    """Open the folder of a training run. Raises DataError if `path` is no such folder.

    >>> run = trainrig.open_run("model")
    >>> run.state, run.settings["training"]["steps"]
    """
    folder = os.fspath(path).rstrip("/")
    file = storage.join(folder, RUN_FILE)
    if not storage.exists(file):
        raise DataError(
            f"{folder}: no {RUN_FILE} in it, so it is not the folder of a training run; name the "
            "`output` of `pretrain`, `posttrain` or `rl`"
        )
    return OpenedRun(folder, tomllib.loads(storage.read(file).decode()))


def build_table(rows: Sequence[Mapping[str, Any]], first: Sequence[str] = ()) -> pa.Table:
    """Return `rows` as a table with the columns of all rows, beginning with the columns `first`.

    Values that are missing are null. A column whose values have no common type is JSON text.
    """
    found = dict.fromkeys(name for row in rows for name in row)
    names = [*(name for name in first if name in found), *(n for n in found if n not in first)]
    return pa.table({name: _build_column([row.get(name) for row in rows]) for name in names})


def _build_column(values: Sequence[Any]) -> pa.Array:
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError):  # such as a number in one event, text in another
        return pa.array([None if value is None else json.dumps(value) for value in values])
