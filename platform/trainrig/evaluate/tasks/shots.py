"""Solved rows before a prompt: which of them are shown, and never the row that is asked."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from trainrig.errors import DataError
from trainrig.evaluate.tasks.definition import Task
from trainrig.evaluate.tasks.prompts import Question, Renderer, Shot
from trainrig.evaluate.tasks.rows import TaskRow


@dataclass(frozen=True)
class _Candidate:
    """A row that may be shown."""

    row: int  # its number in its file
    key: str  # what it asks, as it is compared
    shot: Shot


class ShotPool:
    """Rows that may be shown solved, in the order of a draw.

    Each question is shown the first of them that are not the row itself: neither its place in the
    same file nor a row that asks the same, whichever file that is of.
    """

    def __init__(
        self, task: Task, renderer: Renderer, rows: Sequence[TaskRow], file: str, asked_file: str
    ) -> None:
        """`rows` of `file` are shown before those of `asked_file`. Raises DataError if they are too
        few."""
        self._task, self._renderer = task, renderer
        self._file, self._same_file = file, file == asked_file
        self._candidates: list[_Candidate] = []
        own = task.few_shot.rows is None
        needed = task.few_shot.count + own
        if len(rows) < needed:
            raise DataError(
                f"task '{task.name}': {len(rows)} rows to show solved, but few_shot.count = "
                f"{task.few_shot.count} needs {needed}; lower it"
            )
        self._order = _draw(task, rows, needed)
        for number in range(needed):
            self._find(number)

    def select(self, question: Question) -> tuple[Shot, ...]:
        """Return the rows to show before `question`. Raises DataError if too few differ from it."""
        key, count = _find_key(question), self._task.few_shot.count
        shown: list[Shot] = []
        for number in range(len(self._order)):
            candidate = self._find(number)
            itself = self._same_file and candidate.row == question.row
            if not itself and candidate.key != key:
                shown.append(candidate.shot)
            if len(shown) == count:
                return tuple(shown)
        raise DataError(
            f"{question.where}: few_shot.count = {count}, but {len(shown)} of the "
            f"{len(self._order)} rows of {self._file} ask anything else; lower it, or name other "
            "rows in few_shot.rows"
        )

    def _find(self, number: int) -> _Candidate:
        """Return the candidate at place `number` of the draw, rendered when it is first needed."""
        while len(self._candidates) <= number:
            row = self._order[len(self._candidates)]
            shown = self._renderer.render_question(row)
            shot = self._renderer.build_shot(row)
            self._candidates.append(_Candidate(row.number, _find_key(shown), shot))
        return self._candidates[number]


def _draw(task: Task, rows: Sequence[TaskRow], needed: int) -> list[TaskRow]:
    """Return all `rows` in the order in which they are shown.

    The first are drawn by themselves, so that they are the same where no row has a double.
    """
    if task.few_shot.draw == "first":
        return list(rows)
    first = random.Random(task.few_shot.seed).sample(list(rows), needed)
    drawn = {row.number for row in first}
    rest = [row for row in rows if row.number not in drawn]
    random.Random(f"further rows to show: {task.few_shot.seed}").shuffle(rest)
    return [*first, *rest]


def _find_key(question: Question) -> str:
    """Return what `question` asks, without what white space and case tell; where the prompt is
    empty, that is its answer."""
    asked = question.prompt if question.prompt.strip() else question.expected
    return " ".join(asked.casefold().split())
