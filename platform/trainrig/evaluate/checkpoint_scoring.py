"""Benchmark scores of checkpoints in training, by the contract of `trainrig.train.evaluations`."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trainrig import config, manifest, storage
from trainrig.errors import ConfigError
from trainrig.evaluate.engine.shards import TaskPlan
from trainrig.evaluate.evaluation import check_tasks, claim, evaluate, load_task_runs
from trainrig.evaluate.evaluation_run_file import Evaluation, TaskChoice
from trainrig.evaluate.scorecards import read_scorecard
from trainrig.splits import Phase
from trainrig.train.evaluations import CheckpointScore, RunEvaluation
from trainrig.train.run.checkpoint_scores import ScoringRequest

SHARD_ROWS = 32  # rows lost at most by a kill, and rows between two checks whether to stop


class CheckpointScoring:
    """Scoring of a checkpoint on benchmark tasks, an implementation of `Scoring`."""

    def __init__(self, request: ScoringRequest) -> None:
        """Prepare the evaluation. Raises ConfigError if the list of tasks cannot be read."""
        asked = request.evaluation
        choices, rows = _read_choices(asked)
        self._name = asked.name
        self._run = Evaluation(
            checkpoint=request.checkpoint,
            output=request.output,
            tasks=choices,
            task_rows=rows,
            shard_rows=SHARD_ROWS,
            run_code=asked.run_code,
            device="cpu" if request.device == "cpu" else "auto",
            threads=request.threads,
        )

    def check(self, scores: Sequence[str]) -> None:
        """Raise ConfigError or DataError if the tasks are invalid or do not give all `scores`."""
        tasks = load_task_runs(self._run)
        check_tasks(self._run, tasks)
        TaskPlan(self._run, tasks).list_splits()  # reads the rows
        names = [task.task.name for task in tasks]
        for score in scores:
            if score.partition("/")[0] not in names:
                raise ConfigError(
                    f"training: the evaluation '{self._name}' has no score '{score}'; name it "
                    f"TASK or TASK/METRIC, with one of its tasks: {', '.join(names)}"
                )

    def begin(self) -> None:
        """Claim the output folder of the evaluation."""
        claim(self._run, load_task_runs(self._run))

    def share(self, rank: int, world: int) -> Iterator[None]:
        """Score this rank's share of the shards, yielding after each shard."""
        plan = TaskPlan(self._run, load_task_runs(self._run))
        splits = plan.list_splits()[rank::world]
        phase = Phase(storage.join(self._run.output, manifest.SCRATCH, "tasks"), plan.make_work)
        left, records = phase.open_records(splits)
        work = phase.make_work() if left else None
        with records:
            for split in left:
                assert work is not None
                records.add(phase.do(work, split).to_row())
                yield

    def finish(self) -> Mapping[str, CheckpointScore]:
        """Score the shards that are left, write the scorecard and return its scores.

        Scores have the names TASK/METRIC, and TASK for the headline metric.
        """
        evaluate(self._run)
        found: dict[str, CheckpointScore] = {}
        for name, task in read_scorecard(self._run.output).tasks.items():
            for metric, score in task.metrics.items():
                found[f"{name}/{metric}"] = CheckpointScore(
                    score.value, score.error, _is_gain(metric)
                )
            found[name] = found[f"{name}/{task.metric}"]
        return found


def _is_gain(metric: str) -> bool:
    """Return whether higher values of `metric` are better."""
    return not metric.endswith(("perplexity", "bits_per_byte"))


def _read_choices(asked: RunEvaluation) -> tuple[tuple[TaskChoice, ...], str | None]:
    """Return the tasks of an evaluation, and the folder of their rows or None."""
    if asked.task_list is None:
        return tuple(TaskChoice(task=task, limit=asked.limit) for task in asked.tasks), (
            asked.task_rows
        )
    text = config.read_text(asked.task_list, "task list")
    listed: Mapping[str, Any] = config.parse(text, asked.task_list)
    if not listed.get("tasks"):
        raise ConfigError(
            f"{asked.task_list}: the file has no [[tasks]]; list tasks as in a run file of "
            "`evaluate`"
        )
    choices = tuple(
        _limit_rows(config.build(TaskChoice, table, f"{asked.task_list}.tasks"), asked.limit)
        for table in listed["tasks"]
    )
    return choices, asked.task_rows or listed.get("task_rows")


def _limit_rows(choice: TaskChoice, limit: int | None) -> TaskChoice:
    limits = [given for given in (choice.limit, limit) if given is not None]
    return choice.model_copy(update={"limit": min(limits, default=None)})
