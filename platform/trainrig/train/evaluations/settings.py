"""Run-file settings for evaluations during training, and for decisions by their scores."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from trainrig import storage
from trainrig.config import NOT_IDENTITY, Settings

# Rows of each task to score; None: all.
ROWS: dict[str, int | None] = {"quick": 64, "moderate": 512, "full": None}


class RunEvaluation(Settings):
    """Benchmarks that score checkpoints of the run at regular steps."""

    # Name of the evaluation. Its metrics are `scores/NAME/TASK/METRIC`.
    name: str = Field(pattern=r"^[\w-]+$")
    # Tasks: names of tasks that trainrig ships, or paths of task files, which end in .toml.
    tasks: tuple[str, ...] = ()
    # Run file of `evaluate` whose [[tasks]] and `task_rows` are used, instead of `tasks`.
    task_list: Annotated[str | None, NOT_IDENTITY] = None
    # Folder with the tasks' row files; None: task files give complete paths.
    task_rows: Annotated[str | None, NOT_IDENTITY] = None
    # Steps between evaluations; each saves a checkpoint. The last step is always evaluated.
    every: int = Field(ge=1)
    # Number of rows of each task, from the first on: "quick" is 64, "moderate" 512, "full" all.
    rows: Literal["quick", "moderate", "full"] = "quick"
    # Where to score: "task" as a Ray task while training goes on, on another CPU core if
    # there is one; "workers" on the run's workers and their devices, between two steps.
    where: Literal["task", "workers"] = "task"
    # Consent to run the programs that the model writes for coding tasks, in a sandbox.
    run_code: bool = False

    @model_validator(mode="after")
    def _check_task_settings(self) -> Self:
        if bool(self.tasks) == (self.task_list is not None):
            raise ValueError(f"evaluation '{self.name}': give either `tasks` or `task_list`")
        return self

    def make_paths_absolute(self) -> Self:
        """Return a copy whose paths do not depend on the working directory."""
        tasks = tuple(storage.make_absolute(t) if t.endswith(".toml") else t for t in self.tasks)
        listed = self.task_list
        rows = self.task_rows
        changed = {
            "tasks": tasks,
            "task_list": listed and storage.make_absolute(listed),
            "task_rows": rows and storage.make_absolute(rows),
        }
        return self.model_copy(update=changed)

    @property
    def limit(self) -> int | None:
        """Rows of each task; None: all."""
        return ROWS[self.rows]

    def due(self, step: int, last: int) -> bool:
        """Return whether a run of `last` steps is evaluated after `step`."""
        return step > 0 and (step % self.every == 0 or step == last)


class NamedScore(Settings):
    """Score of an evaluation that a decision depends on."""

    evaluation: str  # name of one of `training.evaluations`
    # Score to use: TASK/METRIC as in the scorecard, or TASK for the task's headline score.
    score: str
    # Steps between the evaluated step and the decision. Training waits there until the score is
    # known, so that it takes the same steps however long scoring takes.
    lag: int = Field(default=0, ge=0)


class StopIf(NamedScore):
    """Condition that ends the run before its last step."""

    # Condition: the score is "below" or "above" `value`, or "no_better" than the best earlier one.
    comparison: Literal["below", "above", "no_better"] = "no_better"
    value: float | None = None  # threshold of "below" and "above"; None for "no_better"
    # Number of consecutive scores for which the condition must hold.
    patience: int = Field(default=1, ge=1)

    @model_validator(mode="after")
    def _check_value(self) -> Self:
        if (self.value is None) != (self.comparison == "no_better"):
            missing = "gives no `value`" if self.value is None else "gives a `value`"
            raise ValueError(f"stop_if: comparison = '{self.comparison}' {missing}")
        return self


class BestBy(NamedScore):
    """Score that decides which checkpoint is the best, which is always kept."""


def check_named(evaluations: tuple[RunEvaluation, ...], named: NamedScore, where: str) -> None:
    """Raise ValueError unless one of `evaluations` is the one that `named` refers to.

    `where`: the setting of `named`, for the message.
    """
    names = [evaluation.name for evaluation in evaluations]
    if named.evaluation not in names:
        have = ", ".join(names) or "none"
        raise ValueError(
            f"{where} goes by the evaluation '{named.evaluation}', but training.evaluations has "
            f"{have}"
        )


def check_names(evaluations: tuple[RunEvaluation, ...]) -> None:
    """Raise ValueError if two evaluations have the same name."""
    names = [evaluation.name for evaluation in evaluations]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"evaluations: {names.count(name)} of them are named '{name}'")
