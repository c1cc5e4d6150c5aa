"""Rows of a task, rendered as prompts with their right answers and with few-shot examples.

Rows are read from JSON Lines (plain or .gz) or Parquet, on disk or in a bucket. The few-shot
examples never include the row that is asked.
"""

import functools
import gzip
import json
import random
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from trainrig import storage
from trainrig.errors import DataError
from trainrig.evaluate.tasks import task_definition, task_templates

_GZIP = b"\x1f\x8b"


@dataclass(frozen=True)
class TaskRow:
    """One row with its number in the file, from 1."""

    number: int
    fields: Mapping[str, Any]


@functools.lru_cache(maxsize=8)
def read_rows(path: str) -> tuple[TaskRow, ...]:
    """Return all rows of the file at `path`. Raises DataError, with file and row, if invalid."""
    try:
        data = storage.read(path)
    except FileNotFoundError:
        raise DataError(
            f"{path}: no such file; correct `rows` of the task, or `task_rows`"
        ) from None
    except IsADirectoryError:
        raise DataError(f"{path}: this is a folder; name the file of rows in it") from None
    rows = (
        _parse_parquet(path, data) if path.endswith(".parquet") else _parse_json_lines(path, data)
    )
    if not rows:
        raise DataError(f"{path}: the file has no row")
    return rows


def _parse_parquet(path: str, data: bytes) -> tuple[TaskRow, ...]:
    try:
        table = pq.read_table(pa.BufferReader(data))
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path}: not a Parquet file: {error}") from None
    return tuple(TaskRow(number, row) for number, row in enumerate(table.to_pylist(), 1))


def _parse_json_lines(path: str, data: bytes) -> tuple[TaskRow, ...]:
    if data.startswith(_GZIP):
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(f"{path}: damaged: {error}") from None
    try:
        text = storage.decode_utf8(data)
    except storage.NotUtf8 as error:
        raise DataError(f"{path}: {error}") from None
    rows = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            rows.append(TaskRow(number, _parse_object(line, f"{path}: row {number}")))
    return tuple(rows)


def _parse_object(line: str, where: str) -> Mapping[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not JSON: {error}") from None
    if not isinstance(found, dict):
        raise DataError(f"{where}: a JSON {type(found).__name__}; write a JSON object")
    return found


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

    def __init__(self, task: task_definition.Task, file: str) -> None:
        """Compile the templates of `task`; `file` is the path of the rows, for errors."""
        self.task = task
        self._file = file
        where = f"task '{task.name}'"
        self._values = {
            k: task_templates.compile_expression(v, f"{where}: values.{k}")
            for k, v in task.values.items()
        }
        self._prompt = task_templates.compile_template(task.prompt, f"{where}: prompt")
        self._group = (
            task_templates.compile_expression(task.group, f"{where}: group") if task.group else None
        )
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
            text = task_templates.compile_template(shown, f"{self._where}: scoring.shown")
            return text(question.fields, question.where)
        return question.expected

    def _make_reader(self) -> Callable[[task_templates.Fields, str], dict[str, Any]]:
        """Return a function that reads the fields of a question that depend on the scoring."""
        scoring = self.task.scoring
        where = f"{self._where}: scoring."
        match scoring:
            case task_definition.MultipleChoice():
                return self._make_choice_reader(scoring)
            case task_definition.Continuation():
                target = task_templates.compile_template(scoring.target, where + "target")
                return lambda fields, row: {"answers": (target(fields, row),)}
            case task_definition.GeneratedAnswer(check=task_definition.InstructionMatch()):
                tables = task_templates.compile_expression(scoring.targets, where + "targets")
                return lambda fields, row: {"instructions": _check_tables(tables(fields, row), row)}
            case task_definition.GeneratedAnswer():
                targets = task_templates.compile_expression(scoring.targets, where + "targets")
                return lambda fields, row: {
                    "answers": _require_texts(targets(fields, row), f"{row}: scoring.targets")
                }
            case task_definition.PreferredAnswer():
                against = task_templates.compile_template(scoring.against, where + "against")
                task_templates.compile_template(scoring.judge_prompt, where + "judge_prompt")
                return lambda fields, row: {"answers": (against(fields, row),)}
            case task_definition.ProgramTests():
                return lambda fields, row: {}
        return lambda fields, row: {}

    def _make_choice_reader(
        self, scoring: task_definition.MultipleChoice
    ) -> Callable[[task_templates.Fields, str], dict[str, Any]]:
        where = f"{self._where}: scoring."
        gold = task_templates.compile_expression(scoring.gold, where + "gold")
        contexts = (
            task_templates.compile_expression(scoring.contexts, where + "contexts")
            if scoring.contexts
            else None
        )
        if isinstance(scoring.choices, str):
            listed = task_templates.compile_expression(scoring.choices, where + "choices")
            several = None
        else:
            several = [
                task_templates.compile_template(choice, where + "choices")
                for choice in scoring.choices
            ]

        def read(fields: task_templates.Fields, row: str) -> dict[str, Any]:
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
    found = task_templates.parse_texts(value)
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
        self,
        task: task_definition.Task,
        renderer: Renderer,
        rows: Sequence[TaskRow],
        file: str,
        asked_file: str,
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


def _draw(task: task_definition.Task, rows: Sequence[TaskRow], needed: int) -> list[TaskRow]:
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
