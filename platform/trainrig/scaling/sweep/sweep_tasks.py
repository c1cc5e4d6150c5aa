"""Evaluation of a sweep's models on benchmark tasks, once each run has finished.

The scorecards of a run lie in its folder, one folder per task, so that a task added later is
evaluated on its own. Each trial's process evaluates its models. The rows are the same at any number
of concurrent trials, and an interrupted trial resumes between two shards of a task's rows.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainrig import manifest, storage
from trainrig.config import with_absolute_paths
from trainrig.errors import ConfigError
from trainrig.evaluate.engine.shards import TaskPlan
from trainrig.evaluate.evaluation import evaluate, load_task_runs
from trainrig.evaluate.evaluation_run_file import Evaluation, TaskChoice
from trainrig.evaluate.scorecards import read_scorecard, read_scored
from trainrig.evaluate.tasks.shipped import ENDING, load_task
from trainrig.evaluate.tasks.task_definition import Continuation, MultipleChoice
from trainrig.scaling.laws.published_laws import is_law_file
from trainrig.scaling.sweep.sweep_run_file import OptimalDesign, Sweep

FOLDER = "tasks"  # name of the folder in a run folder


@dataclass(frozen=True)
class TaskPoint:
    """Scores of one model on one task."""

    score: float  # headline score of the task
    error: float | None  # standard error of the score
    loss: float  # mean over rows, in nats per byte of the correct answers
    chance: float  # score of random guessing


def make_paths_absolute(run: Sweep) -> Sweep:
    """Return `run` with absolute paths only, also for its task files and its prior law."""
    choices = (
        choice.model_copy(update={"task": storage.make_absolute(choice.task)})
        if choice.task.endswith(ENDING)
        else choice
        for choice in run.tasks
    )
    changed: dict[str, Any] = {"tasks": tuple(choices)}
    design = run.design
    if isinstance(design, OptimalDesign) and design.prior and is_law_file(design.prior):
        absolute = storage.make_absolute(design.prior)
        changed["design"] = design.model_copy(update={"prior": absolute})
    return with_absolute_paths(run.model_copy(update=changed))


def check_tasks(run: Sweep) -> None:
    """Raise InputError for tasks that cannot be evaluated, or that give answers no likelihood."""
    names = []
    for choice in run.tasks:
        task, _ = load_task(choice, run.task_rows)
        if not isinstance(task.scoring, MultipleChoice | Continuation):
            raise ConfigError(
                f"tasks: '{task.name}' is scored by {task.scoring.kind}, which gives the correct "
                "answer no likelihood, and task laws are fitted to likelihoods; use tasks of "
                "MultipleChoice or Continuation"
            )
        if task.name in names:
            raise ConfigError(f"tasks: two tasks are named '{task.name}'; leave out one of them")
        names.append(task.name)
        evaluation = _build_evaluation(run, choice, "")
        # reads the rows, and so finds errors in them
        TaskPlan(evaluation, load_task_runs(evaluation)).list_splits()


def score_tasks(run: Sweep, folder: str) -> None:
    """Evaluate the model of the finished run in `folder` on its remaining tasks."""
    for choice in run.tasks:
        evaluate(_build_evaluation(run, choice, folder))


def is_scored_on_tasks(run: Sweep, folder: str) -> bool:
    """Return whether the model of the run in `folder` has been evaluated on all tasks."""
    return all(
        storage.exists(storage.join(_name_folder(run, choice, folder), manifest.MANIFEST))
        for choice in run.tasks
    )


def read_points(run: Sweep, folder: str) -> Mapping[str, TaskPoint]:
    """Return the scores of the model of the run in `folder`, keyed by task.

    Raises DataError if one of the tasks has not been evaluated.
    """
    points = {}
    for choice in run.tasks:
        task_folder = _name_folder(run, choice, folder)
        ((name, task),) = read_scorecard(task_folder).tasks.items()
        losses = [_compute_loss(row) for row in read_scored(task_folder, name)]
        points[name] = TaskPoint(
            score=task.headline.value,
            error=task.headline.error,
            loss=sum(losses) / len(losses),
            chance=task.chance or 0.0,
        )
    return points


def _compute_loss(row: Mapping[str, Any]) -> float:
    """Return the nats per byte of the correct answer in a scored row."""
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
