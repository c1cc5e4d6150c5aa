"""Selection of few-shot examples, which never include the row that is asked."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from trainrig.errors import DataError
from trainrig.evaluate.tasks.definition import Task
from trainrig.evaluate.tasks.prompts import Question, Renderer, Shot
from trainrig.evaluate.tasks.rows import TaskRow


@dataclass(frozen=True)
class _Candidate:
    """A row that can be a few-shot example."""

    row: int  # number of the row in its file, from 1
    key: str  # normalised prompt, to compare with the question
    shot: Shot


class ShotPool:
    """Candidates for few-shot examples, in the order of a draw.

    Each question gets the first candidates that differ from it: neither the same row of the same
    file, nor a row of any file with the same prompt.
    """

    def __init__(
        self, task: Task, renderer: Renderer, rows: Sequence[TaskRow], file: str, asked_file: str
    ) -> None:
        """Draw from `rows` of `file`, as examples for questions of `asked_file`.

        Raises DataError if there are too few rows.
        """
        self._task = task
        self._renderer = renderer
        self._file = file
        self._same_file = file == asked_file
        self._candidates: list[_Candidate] = []
        own = task.few_shot.rows is None
        needed = task.few_shot.count + own
        if len(rows) < needed:
            raise DataError(
                f"task '{task.name}': few_shot.count = {task.few_shot.count} needs {needed} rows "
                f"for examples, but the file has {len(rows)}; lower it"
            )
        self._order = _draw(task, rows, needed)
        for number in range(needed):
            self._find(number)

    def select(self, question: Question) -> tuple[Shot, ...]:
        """Return the examples for `question`. Raises DataError if too few rows differ from it."""
        key = _find_key(question)
        count = self._task.few_shot.count
        shown: list[Shot] = []
        for number in range(len(self._order)):
            candidate = self._find(number)
            itself = self._same_file and candidate.row == question.row
            if not itself and candidate.key != key:
                shown.append(candidate.shot)
            if len(shown) == count:
                return tuple(shown)
        raise DataError(
            f"{question.where}: few_shot.count = {count}, but only {len(shown)} of the "
            f"{len(self._order)} rows of {self._file} ask something different; lower it, or name "
            "other rows in few_shot.rows"
        )

    def _find(self, number: int) -> _Candidate:
        """Return the candidate at index `number` of the draw, which is rendered on first use."""
        while len(self._candidates) <= number:
            row = self._order[len(self._candidates)]
            shown = self._renderer.render_question(row)
            shot = self._renderer.build_shot(row)
            self._candidates.append(_Candidate(row.number, _find_key(shown), shot))
        return self._candidates[number]


def _draw(task: Task, rows: Sequence[TaskRow], needed: int) -> list[TaskRow]:
    """Return all `rows` in the order in which they become examples.

    The first `needed` rows are one draw; the others follow for questions that repeat one of them.
    """
    if task.few_shot.draw == "first":
        return list(rows)
    first = random.Random(task.few_shot.seed).sample(list(rows), needed)
    drawn = {row.number for row in first}
    rest = [row for row in rows if row.number not in drawn]
    random.Random(f"further rows to show: {task.few_shot.seed}").shuffle(rest)
    return [*first, *rest]


def _find_key(question: Question) -> str:
    """Return the prompt of `question`, or its answer if the prompt is empty, for comparison.

    White space and case are normalised.
    """
    asked = question.prompt if question.prompt.strip() else question.expected
    return " ".join(asked.casefold().split())
