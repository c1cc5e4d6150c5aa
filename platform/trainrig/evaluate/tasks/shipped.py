"""Loading of the tasks that a run file names: tasks shipped with trainrig, or task files."""

from collections.abc import Mapping
from importlib import resources
from typing import Any

from trainrig import config, storage
from trainrig.config import with_absolute_paths
from trainrig.errors import ConfigError
from trainrig.evaluate.evaluation_run_file import TaskChoice
from trainrig.evaluate.tasks.task_definition import Task

ENDING = ".toml"
_FOLDER = "evaluate/tasks/definitions"


def list_shipped_tasks() -> list[str]:
    """Return the names of all tasks shipped with trainrig, sorted."""
    folder = resources.files("trainrig").joinpath(_FOLDER)
    return sorted(
        file.name.removesuffix(ENDING) for file in folder.iterdir() if file.name.endswith(ENDING)
    )


def load_task(choice: TaskChoice, folder: str | None) -> tuple[Task, str]:
    """Return the task of `choice` with the changes of the run file, and the path of its rows.

    Relative paths of rows are below `folder`. Raises ConfigError if the task is unknown, or its
    task file is missing or invalid.
    """
    where, text = _read(choice.task)
    data = dict(config.parse(text, where))
    if choice.few_shot is not None:
        shown: Mapping[str, Any] = data.get("few_shot", {})
        data["few_shot"] = {**shown, "count": choice.few_shot}
    task = with_absolute_paths(config.build(Task, data, where, text))
    if task.few_shot.rows is not None:
        placed = _place_path(task.few_shot.rows, folder, where)
        task = task.model_copy(
            update={"few_shot": task.few_shot.model_copy(update={"rows": placed})}
        )
    return task, choice.rows or _place_path(task.rows, folder, where)


def _read(name: str) -> tuple[str, str]:
    """Return the name of a task's file for errors, and the text of the file."""
    if name.endswith(ENDING):
        return name, config.read_text(name, "task file")
    names = list_shipped_tasks()
    if name not in names:
        raise ConfigError(
            f"tasks: '{name}' is neither a task file, whose path ends in {ENDING}, nor a task of "
            f"trainrig{config.suggest_choice(name, names)}"
        )
    file = resources.files("trainrig").joinpath(_FOLDER, name + ENDING)
    return f"task '{name}'", file.read_text(encoding="utf-8")


def _place_path(path: str, folder: str | None, where: str) -> str:
    """Return `path`, below `folder` if it is relative."""
    if storage.is_absolute(path):
        return path
    if folder is None:
        raise ConfigError(
            f"{where}: its rows are in {path}; set `task_rows` to the folder of that file, or "
            "`rows` of the task to the file"
        )
    return storage.join(folder, path)
