"""What of a training run is evaluated while it trains, and which decisions follow from scores."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from trainrig import storage
from trainrig.config import NOT_IDENTITY, Settings

# Rows of each task that are asked; None: all.
ROWS: dict[str, int | None] = {"quick": 64, "moderate": 512, "full": None}


class RunEvaluation(Settings):
    """Benchmarks that checkpoints of the run are asked, every so many steps."""

    # What its scores are called: `scores/NAME/TASK/METRIC` among the metrics.
    name: str = Field(pattern=r"^[\w-]+$")
    # Tasks by the names that trainrig ships, or task files: paths that end in .toml.
    tasks: tuple[str, ...] = ()
    # Run file of `evaluate` whose [[tasks]] and `task_rows` are asked, in the place of `tasks`.
    task_list: Annotated[str | None, NOT_IDENTITY] = None
    # Folder of the tasks' row files; None: task files name them by whole paths.
    task_rows: Annotated[str | None, NOT_IDENTITY] = None
    # Steps between evaluations, each of which makes a checkpoint; the last step is always one.
    every: int = Field(ge=1)
    # Rows of each task, the first ones: "quick" is 64, "moderate" 512, "full" all.
    rows: Literal["quick", "moderate", "full"] = "quick"
    # "task": on Ray, beside training, with a CPU core of its own where one is free; "workers": by
    # the workers of the run on their devices, between two steps.
    where: Literal["task", "workers"] = "task"
    # Consent to run the programs that the model writes for tasks of programs, confined.
    run_code: bool = False

    @model_validator(mode="after")
    def _tasks_are_named_once(self) -> Self:
        if bool(self.tasks) == (self.task_list is not None):
            raise ValueError(f"evaluation '{self.name}': give either `tasks` or `task_list`")
        return self

    def make_paths_absolute(self) -> Self:
        """The same, in which no path depends on the folder that it is read in."""
        tasks = tuple(storage.make_absolute(t) if t.endswith(".toml") else t for t in self.tasks)
        listed, rows = self.task_list, self.task_rows
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
        """Whether a run of `last` steps is evaluated after `step`."""
        return step > 0 and (step % self.every == 0 or step == last)


class NamedScore(Settings):
    """A score of an evaluation that something is decided by."""

    evaluation: str  # name of one of `training.evaluations`
    # Score of it: TASK/METRIC as the scorecard has them, or TASK for the task's headline score.
    score: str
    # Steps after the evaluated one at which the decision is taken. Training waits there until the
    # score is known, so that it takes the same steps however long scoring takes.
    lag: int = Field(default=0, ge=0)


class StopIf(NamedScore):
    """When the run ends before its last step."""

    # What must hold: the score is "below" or "above" `value`, or it is "no_better" than the best
    # of the scores before.
    comparison: Literal["below", "above", "no_better"] = "no_better"
    value: float | None = None  # what "below" and "above" compare with; None: for "no_better"
    patience: int = Field(default=1, ge=1)  # scores in a row for which it must hold

    @model_validator(mode="after")
    def _value_where_it_is_compared_with(self) -> Self:
        if (self.value is None) != (self.comparison == "no_better"):
            missing = "gives no `value`" if self.value is None else "gives a `value`"
            raise ValueError(f"stop_if: comparison = '{self.comparison}' {missing}")
        return self


class BestBy(NamedScore):
    """Which checkpoint is the run's best, kept whatever else is deleted."""


def check_named(evaluations: tuple[RunEvaluation, ...], named: NamedScore, where: str) -> None:
    """Raise ValueError unless `named`, which stands at `where`, names one of `evaluations`."""
    names = [each.name for each in evaluations]
    if named.evaluation not in names:
        have = ", ".join(names) or "none"
        raise ValueError(
            f"{where} goes by the evaluation '{named.evaluation}', but training.evaluations has "
            f"{have}"
        )


def check_names(evaluations: tuple[RunEvaluation, ...]) -> None:
    """Raise ValueError for two evaluations of one name."""
    names = [each.name for each in evaluations]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"evaluations: {names.count(name)} of them are named '{name}'")
