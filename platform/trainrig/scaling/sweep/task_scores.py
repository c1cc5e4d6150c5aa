"""Tasks that the models of a sweep are asked, each once its run is over.

A run's scorecards lie in its folder, one folder a task, so a task that is added later is asked
alone. Each trial's own process asks: the rows are the same at any number of trials at a time,
and a trial that was cut short goes on between two shards of a task's rows.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainrig import manifest, storage
from trainrig.config.absolute_paths import with_absolute_paths
from trainrig.errors import ConfigError
from trainrig.evaluate.engine.shards import TaskPlan, read_scored
from trainrig.evaluate.run_file import Evaluation, TaskChoice
from trainrig.evaluate.scorecard import evaluate, load_task_runs
from trainrig.evaluate.scores.card import read_scorecard
from trainrig.evaluate.tasks.scoring import Continuation, MultipleChoice
from trainrig.evaluate.tasks.shipped import ENDING, load_task
from trainrig.scaling.sweep.run_file import Sweep

FOLDER = "tasks"  # below a run's folder


@dataclass(frozen=True)
class TaskPoint:
    """What one model scored on one task."""

    score: float  # headline
    error: float | None  # its standard error
    loss: float  # nats per byte of the right answers, the mean over rows
    chance: float  # what blind guessing scores


def at_absolute_paths(run: Sweep) -> Sweep:
    """`run`, in which no path depends on the folder that it is read in, nor that of a task file."""
    choices = (
        choice.model_copy(update={"task": storage.make_absolute(choice.task)})
        if choice.task.endswith(ENDING)
        else choice
        for choice in run.tasks
    )
    return with_absolute_paths(run.model_copy(update={"tasks": tuple(choices)}))


def check_tasks(run: Sweep) -> None:
    """Raise InputError for tasks that cannot be asked, or give right answers no likelihood."""
    names = []
    for choice in run.tasks:
        task, _ = load_task(choice, run.task_rows)
        if not isinstance(task.scoring, MultipleChoice | Continuation):
            raise ConfigError(
                f"tasks: '{task.name}' is scored by {task.scoring.kind}, which gives its right "
                "answer no likelihood, and task laws are fitted to that; sweeps ask tasks of "
                "MultipleChoice and Continuation"
            )
        if task.name in names:
            raise ConfigError(f"tasks: two of them are named '{task.name}'")
        names.append(task.name)
        asked = _build_evaluation(run, choice, "")
        TaskPlan(asked, load_task_runs(asked)).list_splits()  # reads the rows


def ask_tasks(run: Sweep, folder: str) -> None:
    """Ask the model of the finished run in `folder` all tasks that it was not asked yet."""
    for choice in run.tasks:
        evaluate(_build_evaluation(run, choice, folder))


def were_asked(run: Sweep, folder: str) -> bool:
    """Whether the model of the run in `folder` was asked all tasks."""
    return all(
        storage.exists(storage.join(_name_folder(run, choice, folder), manifest.MANIFEST))
        for choice in run.tasks
    )


def read_points(run: Sweep, folder: str) -> Mapping[str, TaskPoint]:
    """What the model of the run in `folder` scored, by task. Raises DataError if it was not asked
    all of them."""
    found = {}
    for choice in run.tasks:
        place = _name_folder(run, choice, folder)
        ((name, task),) = read_scorecard(place).tasks.items()
        losses = [_compute_loss(row) for row in read_scored(place, name)]
        found[name] = TaskPoint(
            score=task.headline.value,
            error=task.headline.error,
            loss=sum(losses) / len(losses),
            chance=task.chance or 0.0,
        )
    return found


def _compute_loss(row: Mapping[str, Any]) -> float:
    """Nats per byte of the right answer of a scored row."""
    nats = row["log_likelihoods"][row["gold"]] if "gold" in row else row["log_likelihood"]
    return -float(nats) / max(1, int(row["answer_bytes"]))


def _build_evaluation(run: Sweep, choice: TaskChoice, folder: str) -> Evaluation:
    return with_absolute_paths(
        Evaluation(
            checkpoint=folder,
            output=_name_folder(run, choice, folder),
            tasks=(choice,),
            task_rows=run.task_rows,
            threads=run.training.threads,
        )
    )


def _name_folder(run: Sweep, choice: TaskChoice, folder: str) -> str:
    return storage.join(folder, FOLDER, load_task(choice, run.task_rows)[0].name)
