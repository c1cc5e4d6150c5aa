"""The work of an evaluation, divided into shards: ranges of rows of one task.

A shard is computed independently of all others, so its file is bit-identical on any worker.
Finished shards are not computed again.
"""

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trainrig import config, manifest, storage
from trainrig.errors import DataError
from trainrig.evaluate.engine.answers import Examination
from trainrig.evaluate.engine.encoding import RequestEncoder
from trainrig.evaluate.engine.judge import Judge
from trainrig.evaluate.engine.opened_model import OpenedModel
from trainrig.evaluate.run_file import Evaluation
from trainrig.evaluate.tasks.definition import Task
from trainrig.evaluate.tasks.prompts import Question, Renderer
from trainrig.evaluate.tasks.rows import read_rows
from trainrig.evaluate.tasks.scoring import PreferredAnswer, ProgramTests
from trainrig.evaluate.tasks.shots import ShotPool
from trainrig.manifest import FileSum
from trainrig.splits import Split, Work

ROWS = "rows"  # folder of scored rows, below the stage's: ROWS/TASK/00000.jsonl


@dataclass(frozen=True)
class TaskRun:
    """A task with the options under which it is evaluated."""

    task: Task
    rows: str  # file of the task's rows
    limit: int | None = None  # number of rows to use, from the first; None: all
    chat: bool = False  # true: prompts are user turns in the tokenizer's chat format


@dataclass(frozen=True)
class TaskPlan:
    """The tasks of an evaluation, as plain data that can be sent to workers."""

    run: Evaluation
    tasks: tuple[TaskRun, ...]

    def make_work(self) -> Work:
        """Load the model and return the function that a worker calls for each split."""
        return functools.partial(self._do, OpenedModel.load(self.run))

    def list_splits(self) -> list[Split]:
        """Return a split for each shard of each task. Raises DataError for invalid rows."""
        found = []
        for number, run in enumerate(self.tasks):
            count = len(load_questions(run))
            for shard, begin in enumerate(range(0, count, self.run.shard_rows)):
                name = f"{run.task.name}-{shard:05d}"
                found.append(Split(name, {"task": number, "shard": shard, "begin": begin}))
        return found

    def _do(
        self, opened: OpenedModel, given: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, FileSum]]:
        run = self.tasks[given["task"]]
        begin = given["begin"]
        questions = load_questions(run)[begin : begin + self.run.shard_rows]
        scoring = run.task.scoring
        judge = None
        if isinstance(scoring, PreferredAnswer):
            judge = Judge.open(scoring, self.run, opened.model, run.chat)
        examination = Examination(
            model=opened.model,
            encoder=RequestEncoder(
                opened.encoder, opened.model.config.positions, self.run.document_start
            ),
            task=run.task,
            batch_tokens=self.run.batch_tokens,
            chat=run.chat,
            judge=judge,
        )
        rows = examination.score_questions(questions)
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        name = f"{ROWS}/{run.task.name}/{given['shard']:05d}.jsonl"
        path = storage.join(self.run.output, name)
        storage.write(path, text.encode("utf-8", "surrogatepass"))
        return {"rows": len(rows)}, {name: manifest.compute_file_sum(path)}


def load_questions(run: TaskRun) -> tuple[Question, ...]:
    """Return a task's questions, in the order of its rows. Raises DataError for invalid rows."""
    return _load_questions(run.task.model_dump_json(), run.rows, run.limit)


@functools.lru_cache(maxsize=4)
def _load_questions(task_json: str, path: str, limit: int | None) -> tuple[Question, ...]:
    task = config.build(Task, json.loads(task_json), path)
    rows = read_rows(path)
    renderer = Renderer(task, path)
    questions = [renderer.render_question(row) for row in rows[:limit]]
    if not task.few_shot.count:
        return tuple(questions)
    shown_file = task.few_shot.rows or path
    pool = ShotPool(task, Renderer(task, shown_file), read_rows(shown_file), shown_file, path)
    return tuple(replace(question, shots=pool.select(question)) for question in questions)


def list_program_tasks(tasks: Sequence[TaskRun]) -> list[str]:
    """Return the names of the tasks that run programs written by the model."""
    return [run.task.name for run in tasks if isinstance(run.task.scoring, ProgramTests)]


def read_scored(folder: str, task: str) -> list[dict[str, Any]]:
    """Return the scored rows of `task` in an evaluation's folder, in the order of the task's rows.

    Raises DataError if there are none.
    """
    rows = []
    for path in sorted(storage.list_files(storage.join(folder, ROWS, task), ".jsonl")):
        for line in storage.read(path).decode("utf-8", "surrogatepass").split("\n"):
            if line:
                rows.append(json.loads(line))
    if not rows:
        raise DataError(
            f"{folder}: the folder has no scored rows of task '{task}'; run `trainrig evaluate` "
            "again"
        )
    return rows
