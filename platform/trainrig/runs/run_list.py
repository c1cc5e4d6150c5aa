"""List of the training runs below a folder, with their progress and results."""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainrig import hardware, manifest, storage
from trainrig.errors import DataError
from trainrig.processes import lease
from trainrig.storage.missing_folders import describe_origin, is_missing
from trainrig.train.evaluations import CheckpointScore
from trainrig.train.run import metrics
from trainrig.train.run.checkpoint_scores import read_usable_scores
from trainrig.train.run.run_folder import EVENTS, RunFolder

RUN_FILE = "run.toml"
WAYS_TO_END = {"run_stopped": "stopped", "attempt_failed": "failed", "finished": "finished"}


@dataclass(frozen=True)
class BestScore:
    """Best score of a run's checkpoints on one task."""

    evaluation: str
    task: str
    value: float
    error: float | None  # standard error
    step: int


@dataclass(frozen=True)
class ListedRun:
    """Summary of one training run."""

    folder: str
    verb: str
    state: str  # "finished", "running", "stopped", "failed", or "left": its driver died
    step: int  # updates done
    steps: int  # planned in the run file
    loss: float | None  # loss of the last update, nats per token
    best_held_out: float | None  # the lowest held-out loss, nats per token
    best_step: int | None  # the update after which it was measured
    tokens: int  # trained on
    best_scores: tuple[BestScore, ...]  # one for each task of its evaluations
    worker_hours: float  # workers times hours of updates, all attempts together
    # Workers times hours from the start of each attempt to its last sign of life. This includes
    # starting up, and the time lost to faults and restarts.
    paid_hours: float
    usd: float | None  # cost of the paid hours; None: no machine was named


def list_runs(folder: str, instance: str | None = None) -> list[ListedRun]:
    """Return the runs in `folder` and below it, by path, with the on-demand cost of `instance`.

    Raises DataError if there is no run, ConfigError if the hardware table lacks the instance.
    """
    if instance is not None:
        hardware.load().find_instance(instance)
    folders = sorted(_run_folders(folder.rstrip("/")))
    found = list(storage.map_files(lambda path: read_listed_run(path, instance), folders))
    if not found:
        if is_missing(folder):
            raise DataError(f"{folder}: no such folder{describe_origin(folder)}")
        raise DataError(
            f"{folder}: no training run in this folder or below it; name a folder with "
            "training runs"
        )
    return found


def _run_folders(folder: str) -> Iterator[str]:
    """Yield the folders with a run file and events."""
    files = storage.list_files(folder)
    # Events are one file on a disk, and files in a folder of that name in a bucket.
    logs = {path if path.endswith(f"/{EVENTS}") else path.rpartition("/")[0] for path in files}
    logged = {path.removesuffix(f"/{EVENTS}") for path in logs if path.endswith(f"/{EVENTS}")}
    for path in files:
        run = path.removesuffix(f"/{RUN_FILE}")
        if path != run and run in logged:
            yield run


def read_listed_run(folder: str, instance: str | None = None) -> ListedRun:
    """Summarize the run in `folder` from its files, with the cost of `instance`."""
    run = tomllib.loads(storage.read(storage.join(folder, RUN_FILE)).decode())
    lines = list(metrics.read_lines(folder))
    updates = metrics.read_series(folder)
    measured = [
        (line["eval/loss"], line["step"])
        for line in metrics.read_held_out_series(folder)
        if line["eval/loss"] is not None
    ]
    last: dict[str, Any] = updates[-1] if updates else {}
    seconds = sum(metrics.wall_seconds(line) * line["cluster/workers"] for line in lines)
    paid = _count_paid_hours(folder, lines)
    best = min(measured, default=(None, None))
    return ListedRun(
        folder=folder,
        verb=run["stage"],
        state=read_run_state(folder),
        step=last.get("step", 0),
        steps=run["training"]["steps"],
        loss=last.get("train/loss"),
        best_held_out=best[0],
        best_step=best[1],
        tokens=last.get("train/tokens", 0),
        best_scores=tuple(_find_best_scores(folder, run["training"].get("evaluations", ()))),
        worker_hours=seconds / 3600,
        paid_hours=paid,
        usd=None if instance is None else paid * compute_worker_usd(instance, run["training"]),
    )


def _count_paid_hours(folder: str, lines: Sequence[Mapping[str, Any]]) -> float:
    """Return workers times hours, from the start of each attempt to its last event or update."""
    events = list(RunFolder(folder).read_events())
    last: dict[int, float] = {}
    for entry in (*events, *lines):
        if "attempt" in entry and "time" in entry:
            last[entry["attempt"]] = max(entry["time"], last.get(entry["attempt"], 0.0))
    started = [event for event in events if event["event"] == "attempt_started"]
    held = ((last[e["attempt"]] - e["time"]) * e["workers"] for e in started)
    return float(sum(held)) / 3600


def compute_worker_usd(instance: str, training: Mapping[str, Any]) -> float:
    """Return the hourly cost of a worker in USD.

    A worker is one device of `instance`, or, if it has no devices, the share of its threads.
    """
    offers = hardware.load()
    machine = offers.find_instance(instance)
    if devices := offers.count_accelerators(instance):
        return machine.usd / devices
    return machine.usd * int(training.get("threads", 1)) / machine.vcpus


def _find_best_scores(folder: str, evaluations: Sequence[Mapping[str, Any]]) -> Iterator[BestScore]:
    """Yield the best headline score of each task of each evaluation, of usable scores."""
    for evaluation in evaluations:
        best: dict[str, tuple[CheckpointScore, int]] = {}
        for scored in read_usable_scores(RunFolder(folder), evaluation["name"]):
            for task, score in scored.scores.items():
                # The headline score has the task's name as its key, other scores TASK/METRIC.
                if "/" not in task and (task not in best or score.is_better_than(best[task][0])):
                    best[task] = score, scored.step
        for task, (score, step) in best.items():
            yield BestScore(evaluation["name"], task, score.value, score.error, step)


def read_run_state(folder: str) -> str:
    """Return the state of the run in `folder`."""
    if storage.exists(storage.join(folder, manifest.MANIFEST)):
        return "finished"
    if lease.is_held(folder):
        return "running"
    ends = [e["event"] for e in RunFolder(folder).read_events() if e["event"] in WAYS_TO_END]
    return WAYS_TO_END[ends[-1]] if ends else "left"


def shorten_name(run: ListedRun, below: str) -> str:
    """Return the folder of `run` relative to the folder `below`."""
    if run.folder == below.rstrip("/"):
        return Path(run.folder).name
    return run.folder.removeprefix(f"{below.rstrip('/')}/")
