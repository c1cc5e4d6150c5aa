"""`trainrig runs`: the training runs below a folder, each with how far it is and what it made."""

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainrig import manifest, storage
from trainrig.errors import DataError
from trainrig.processes import lease
from trainrig.train.run import metrics
from trainrig.train.run.run_folder import EVENTS, RunFolder

RUN_FILE = "run.toml"
WAYS_TO_END = {"run_stopped": "stopped", "attempt_failed": "failed", "finished": "finished"}


@dataclass(frozen=True)
class ListedRun:
    """One training run."""

    folder: str
    verb: str
    state: str  # "finished", "running", "stopped", "failed", or "left": its driver died
    step: int  # updates done
    steps: int  # that its run file asks for
    loss: float | None  # of the last update, nats per token
    best_held_out: float | None  # the lowest that was measured
    best_step: int | None  # after which it was
    tokens: int  # trained on
    worker_hours: float  # workers times hours, of all attempts


def list_runs(folder: str) -> list[ListedRun]:
    """The runs in `folder` and below it, by path. Raises DataError if there is none."""
    found = [listed_run(path) for path in sorted(_run_folders(folder.rstrip("/")))]
    if not found:
        raise DataError(f"{folder}: no training run in it or below it")
    return found


def _run_folders(folder: str) -> Iterator[str]:
    """Those with a run file and events."""
    suffix = f"/{RUN_FILE}"
    for path in storage.list_files(folder, suffix):
        run = path.removesuffix(suffix)
        there = storage.exists(storage.join(run, EVENTS)) or storage.list_files(f"{run}/{EVENTS}")
        if there:
            yield run


def listed_run(folder: str) -> ListedRun:
    """What the files of the run in `folder` say of it."""
    run = tomllib.loads(storage.read(storage.join(folder, RUN_FILE)).decode())
    lines = list(metrics.read_lines(folder))
    updates = metrics.series(folder)
    measured = [
        (line["eval/loss"], line["step"])
        for line in metrics.held_out_series(folder)
        if line["eval/loss"] is not None
    ]
    last: dict[str, Any] = updates[-1] if updates else {}
    seconds = sum(metrics.wall_seconds(line) * line["cluster/workers"] for line in lines)
    best = min(measured, default=(None, None))
    return ListedRun(
        folder=folder,
        verb=run["stage"],
        state=state_of(folder),
        step=last.get("step", 0),
        steps=run["training"]["steps"],
        loss=last.get("train/loss"),
        best_held_out=best[0],
        best_step=best[1],
        tokens=last.get("train/tokens", 0),
        worker_hours=seconds / 3600,
    )


def state_of(folder: str) -> str:
    """How the run in `folder` stands."""
    if storage.exists(storage.join(folder, manifest.MANIFEST)):
        return "finished"
    if lease.is_held(folder):
        return "running"
    ends = [e["event"] for e in RunFolder(folder).events() if e["event"] in WAYS_TO_END]
    return WAYS_TO_END[ends[-1]] if ends else "left"


def shown_name(run: ListedRun, below: str) -> str:
    """The folder of `run` as it is called below the folder `below`."""
    if run.folder == below.rstrip("/"):
        return Path(run.folder).name
    return run.folder.removeprefix(f"{below.rstrip('/')}/")
