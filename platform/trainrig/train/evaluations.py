"""Evaluations in a training run: settings, decisions by scores, and comparison before and after.

Decisions (whether the run ends early, which checkpoint is the best) are pure functions of the
scores that count, so every rank and every later reader decides alike. A comparison asks the
model the same things before the first step and after the last, on the devices that train it, so
no second copy is needed. The run folder keeps what it said:

    comparison/step_00000000.json   the model before the first step; the last step has one too
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal, Protocol, Self

from pydantic import Field, TypeAdapter, model_validator

from trainrig import storage
from trainrig.config import NOT_IDENTITY, Settings
from trainrig.errors import ConfigError

if TYPE_CHECKING:
    from torch import nn

    from trainrig.parallel.mesh import WorkerMesh
    from trainrig.parallel.stop_consensus import StopConsensus


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
    # Where to score: "task" as a Ray task while training goes on, on a GPU that the workers cannot
    # need, else on a CPU core; "workers" on the run's workers and their devices, between two steps.
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


@dataclass(frozen=True)
class CheckpointScore:
    """One score of one task."""

    value: float
    error: float | None  # standard error
    higher_is_better: bool

    def is_better_than(self, other: "CheckpointScore") -> bool:
        """Return whether this score is better than `other`, not equal; NaN is the worst."""
        if math.isnan(other.value):
            return not math.isnan(self.value)
        return self.value > other.value if self.higher_is_better else self.value < other.value


@dataclass(frozen=True)
class ScoredCheckpoint:
    """Scores of one checkpoint by one evaluation."""

    evaluation: str
    step: int
    attempt: int  # the attempt that saved the checkpoint
    scores: Mapping[str, CheckpointScore]  # keys: TASK/METRIC, and TASK for its headline score
    problem: str | None = None  # why there are no scores

    def find(self, named: NamedScore) -> CheckpointScore:
        """Return the score that `named` selects. Raise ConfigError if it does not exist."""
        if named.score not in self.scores:
            there = ", ".join(sorted(self.scores))
            raise ConfigError(
                f"training: the evaluation '{self.evaluation}' has no score '{named.score}'; it "
                f"has {there}"
            )
        return self.scores[named.score]


def find_stop_reason(rule: StopIf, scored: Sequence[ScoredCheckpoint]) -> str | None:
    """Return why the run ends by `rule`, in words; None if it continues.

    `scored`: in order of steps.
    """
    scores = [checkpoint.find(rule) for checkpoint in scored]
    if len(scores) < rule.patience:
        return None
    newest = len(scores) - rule.patience
    if not all(_holds(rule, scores, at) for at in range(newest, len(scores))):
        return None
    shown = ", ".join(f"{score.value:.4g}" for score in scores[newest:])
    what = "no better than before" if rule.value is None else f"{rule.comparison} {rule.value:g}"
    last = scored[-1].step
    return f"{rule.evaluation}: {rule.score} was {shown} up to step {last}, {what}"


def _holds(rule: StopIf, scores: Sequence[CheckpointScore], at: int) -> bool:
    score = scores[at]
    if rule.value is None:
        return at > 0 and not all(score.is_better_than(earlier) for earlier in scores[:at])
    return score.value < rule.value if rule.comparison == "below" else score.value > rule.value


def choose_best(named: NamedScore, scored: Sequence[ScoredCheckpoint]) -> ScoredCheckpoint | None:
    """Return the checkpoint with the best score, the earliest of equal ones; None if none has."""
    best: ScoredCheckpoint | None = None
    for checkpoint in scored:
        score = checkpoint.find(named)
        if math.isnan(score.value):
            continue
        if best is None or score.is_better_than(best.find(named)):
            best = checkpoint
    return best


@dataclass(frozen=True)
class GivenAnswer:
    """Answer of the model to a prompt, its number of tokens, and what ended it."""

    prompt: str
    text: str
    tokens: int
    stopped: str


@dataclass(frozen=True)
class ModelView:
    """View of a model at one step: held-out losses by source, in nats per token, and answers."""

    step: int
    losses: dict[str, float]
    answers: tuple[GivenAnswer, ...]


class ModelComparison(Protocol):
    """Comparison: what to ask a model."""

    def view(
        self, model: "nn.Module", mesh: "WorkerMesh", step: int, agreed_to_stop: Callable[[], bool]
    ) -> ModelView | None:
        """Return the losses and answers of `model` after `step`, equal on all ranks. Collective.

        Returns None if all ranks agreed to stop. `mesh`: the ranks that hold `model`.
        """


def compare_nothing() -> ModelComparison | None:
    """Return None: the factory of comparisons for runs that make none."""
    return None


COMPARISON_FOLDER = "comparison"
_VIEW = TypeAdapter(ModelView)


def view_path(folder: str, step: int) -> str:
    """Return the path of the record of the model at `step`, in the run `folder`."""
    return storage.join(folder, COMPARISON_FOLDER, f"step_{step:08d}.json")


def write_view(folder: str, view: ModelView) -> None:
    """Store `view` in the run `folder`."""
    storage.write(view_path(folder, view.step), _VIEW.dump_json(view, indent=1))


def read_views(folder: str) -> list[ModelView]:
    """Read all records of the run in `folder`, in order of steps."""
    paths = storage.list_files(storage.join(folder, COMPARISON_FOLDER), ".json")
    views = map(_VIEW.validate_json, storage.read_files(paths))
    return sorted(views, key=lambda view: view.step)


class RunComparison:
    """Comparison of a run, on one rank of one attempt. All ranks must call the same methods."""

    def __init__(
        self,
        folder: str,
        asked: ModelComparison | None,
        agreement: "StopConsensus",
        agreed_to_stop: Callable[[str], bool],
        mesh: "WorkerMesh",
    ) -> None:
        """Set up the comparison of the run in `folder`; `asked` is None if nothing is compared.

        `agreed_to_stop` is called with what the ranks are doing, and returns the same on all ranks.
        """
        self._folder = folder
        self._asked = asked
        self._mesh = mesh
        self._agreement = agreement
        self._agreed_to_stop = agreed_to_stop

    def record_before(self, model: "nn.Module", step: int) -> bool:
        """Record the model's answers before its first step. Return False if all agreed to stop."""
        return step > 0 or self._record_view(model, step, lambda: self._agreed_to_stop("compare"))

    def record_after(self, model: "nn.Module", step: int) -> None:
        """Record the model's answers after its last step; stop requests are ignored."""

        def never() -> bool:
            self._agreed_to_stop("compare")
            return False

        self._record_view(model, step, never)

    def _record_view(
        self, model: "nn.Module", step: int, agreed_to_stop: Callable[[], bool]
    ) -> bool:
        import torch.distributed as dist

        if self._asked is None:
            return True
        first = dist.get_rank() == 0
        known = first and storage.exists(view_path(self._folder, step))
        if self._agreement.any(known):
            return True
        view = self._asked.view(model, self._mesh, step, agreed_to_stop)
        if view and first:
            write_view(self._folder, view)
        return view is not None
