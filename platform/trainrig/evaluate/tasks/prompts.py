"""Rendering of rows as prompts with their right answers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainrig.errors import DataError
from trainrig.evaluate.checks.settings import InstructionMatch
from trainrig.evaluate.tasks.definition import Task
from trainrig.evaluate.tasks.rows import TaskRow
from trainrig.evaluate.tasks.scoring import (
    Continuation,
    GeneratedAnswer,
    MultipleChoice,
    PreferredAnswer,
    ProgramTests,
)
from trainrig.evaluate.tasks.templates import (
    Fields,
    compile_expression,
    compile_template,
    parse_texts,
)


@dataclass(frozen=True)
class Shot:
    """A few-shot example: a row with its right answer."""

    prompt: str
    answer: str


@dataclass(frozen=True)
class Question:
    """A rendered row. The kind of scoring decides which fields other than the prompt are set."""

    row: int  # number of the row in its file, from 1
    where: str  # file and row, for errors
    prompt: str
    fields: Mapping[str, Any]  # fields of the row, and the task's `values`
    shots: tuple[Shot, ...] = ()
    group: str | None = None
    answers: tuple[str, ...] = ()  # the choices, or all right answers
    gold: int | None = None  # index of the right choice
    contexts: tuple[str, ...] = ()  # prompts by choice, in place of the single prompt
    instructions: tuple[Mapping[str, Any], ...] = ()

    @property
    def expected(self) -> str:
        """The right answer as text; "" if the row has none."""
        if self.gold is None:
            return self.answers[0] if self.answers else ""
        return (self.contexts or self.answers)[self.gold]


class Renderer:
    """The compiled templates of one task. Raises ConfigError for an invalid template."""

    def __init__(self, task: Task, file: str) -> None:
        """Compile the templates of `task`; `file` is the path of the rows, for errors."""
        self.task = task
        self._file = file
        where = f"task '{task.name}'"
        self._values = {
            k: compile_expression(v, f"{where}: values.{k}") for k, v in task.values.items()
        }
        self._prompt = compile_template(task.prompt, f"{where}: prompt")
        self._group = compile_expression(task.group, f"{where}: group") if task.group else None
        self._where = where
        self._read = self._make_reader()

    def render_question(self, row: TaskRow) -> Question:
        """Render `row` as a question. Raises DataError, with file and row, for a missing field."""
        where = f"{self._file}: row {row.number}"
        fields = dict(row.fields)
        for name, value in self._values.items():
            fields[name] = value(fields, where)
        return Question(
            row=row.number,
            where=where,
            prompt=self._prompt(fields, where),
            fields=fields,
            group=None if self._group is None else str(self._group(fields, where)),
            **self._read(fields, where),
        )

    def build_shot(self, row: TaskRow) -> Shot:
        """Return `row` as a few-shot example with its answer."""
        question = self.render_question(row)
        return Shot(question.prompt, self.task.delimiter + self._render_shot(question))

    def _render_shot(self, question: Question) -> str:
        scoring = self.task.scoring
        shown = getattr(scoring, "shown", None)
        if shown is not None:
            text = compile_template(shown, f"{self._where}: scoring.shown")
            return text(question.fields, question.where)
        return question.expected

    def _make_reader(self) -> Callable[[Fields, str], dict[str, Any]]:
        """Return a function that reads the fields of a question that depend on the scoring."""
        scoring = self.task.scoring
        where = f"{self._where}: scoring."
        match scoring:
            case MultipleChoice():
                return self._make_choice_reader(scoring)
            case Continuation():
                target = compile_template(scoring.target, where + "target")
                return lambda fields, row: {"answers": (target(fields, row),)}
            case GeneratedAnswer(check=InstructionMatch()):
                tables = compile_expression(scoring.targets, where + "targets")
                return lambda fields, row: {"instructions": _check_tables(tables(fields, row), row)}
            case GeneratedAnswer():
                targets = compile_expression(scoring.targets, where + "targets")
                return lambda fields, row: {
                    "answers": _require_texts(targets(fields, row), f"{row}: scoring.targets")
                }
            case PreferredAnswer():
                against = compile_template(scoring.against, where + "against")
                compile_template(scoring.judge_prompt, where + "judge_prompt")
                return lambda fields, row: {"answers": (against(fields, row),)}
            case ProgramTests():
                return lambda fields, row: {}
        return lambda fields, row: {}

    def _make_choice_reader(
        self, scoring: MultipleChoice
    ) -> Callable[[Fields, str], dict[str, Any]]:
        where = f"{self._where}: scoring."
        gold = compile_expression(scoring.gold, where + "gold")
        contexts = (
            compile_expression(scoring.contexts, where + "contexts") if scoring.contexts else None
        )
        if isinstance(scoring.choices, str):
            listed = compile_expression(scoring.choices, where + "choices")
            several = None
        else:
            several = [compile_template(choice, where + "choices") for choice in scoring.choices]

        def read(fields: Fields, row: str) -> dict[str, Any]:
            if several is None:
                answers = _require_texts(listed(fields, row), f"{row}: scoring.choices")
            else:
                answers = tuple(template(fields, row) for template in several)
            before = (
                _require_texts(contexts(fields, row), f"{row}: scoring.contexts")
                if contexts
                else ()
            )
            if before and len(answers) == 1:
                answers *= len(before)
            if before and len(before) != len(answers):
                raise DataError(
                    f"{row}: it has {len(before)} contexts for {len(answers)} choices; they must "
                    "be equally many"
                )
            if len(answers) < 2:
                raise DataError(f"{row}: it has fewer than two choices; give at least two")
            number = _find_gold(gold(fields, row), before or answers, row)
            return {"answers": answers, "gold": number, "contexts": before}

        return read


def _require_texts(value: Any, where: str) -> tuple[str, ...]:
    found = parse_texts(value)
    if not found:
        raise DataError(f"{where}: must be a text or a list of texts, but is {_shorten(value)}")
    return found


def _find_gold(value: Any, answers: Sequence[str], row: str) -> int:
    """Return the index of the right one of `answers`; `value` is its index or its text."""
    if isinstance(value, str):
        if value in answers:
            return list(answers).index(value)
        if not value.strip().isdecimal():
            listed = ", ".join(map(_shorten, answers))
            raise DataError(
                f"{row}: the answer {_shorten(value)} is not one of the choices: {listed}"
            )
        value = int(value)
    if not isinstance(value, int | float) or value != int(value):
        raise DataError(f"{row}: the answer {_shorten(value)} is neither a number nor a text")
    if not 0 <= value < len(answers):
        raise DataError(
            f"{row}: the answer is choice {int(value)}, but the row has {len(answers)} choices, "
            "counted from 0"
        )
    return int(value)


def _check_tables(value: Any, row: str) -> tuple[Mapping[str, Any], ...]:
    items = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else []
    if not items or not all(isinstance(item, Mapping) and "id" in item for item in items):
        raise DataError(f"{row}: scoring.targets must be a list of tables with an `id`")
    return tuple(items)


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
