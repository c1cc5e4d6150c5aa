"""What a run's checkpoints said to the same prompts, from the rows that its evaluations keep.

rows/TASK/00000.jsonl   of a scorecard's folder: the first rows of a task, as `evaluate` scored them
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainrig import storage
from trainrig.train.evaluations.decisions import ScoredCheckpoint
from trainrig.train.run.run_folder import RunFolder
from trainrig.train.run.scores.records import scorecard_folder

MOMENTS = 5  # of a run that are looked at: the first, the last, and some between
TASKS = 3  # of an evaluation
PROMPTS = 3  # of a task: its first rows, whatever was said to them


@dataclass(frozen=True)
class AnswerAt:
    """What was said after `step` updates, and what it was worth."""

    step: int
    text: str
    measure: str
    worth: float


@dataclass(frozen=True)
class FollowedPrompt:
    """One prompt, and the answers to it in order of steps."""

    source: str  # where the prompt is from, in words
    prompt: str
    expected: str | None  # None: no answer is known to be right
    answers: tuple[AnswerAt, ...]


def read_followed(folder: RunFolder, scored: Sequence[ScoredCheckpoint]) -> list[FollowedPrompt]:
    """The answers of some checkpoints `scored` by one evaluation to the first rows of its tasks.

    Of tasks that are answered in words, or by a choice; tasks first in which words are written.
    """
    chosen = [scored[number] for number in choose_moments(len(scored))]
    found: list[tuple[bool, list[FollowedPrompt]]] = []
    for task in sorted({name for each in chosen for name in each.scores if "/" not in name}):
        by_row: dict[int, list[tuple[ScoredCheckpoint, Mapping[str, Any]]]] = {}
        for each in chosen:
            for row in _read_first_rows(folder, each, task):
                by_row.setdefault(row["row"], []).append((each, row))
        if by_row:
            written = any("written" in row for rows in by_row.values() for _, row in rows)
            found.append((written, [_follow_prompt(task, rows) for rows in by_row.values()]))
    found.sort(key=lambda each: not each[0])
    return [prompt for _, prompts in found[:TASKS] for prompt in prompts]


def choose_moments(count: int) -> list[int]:
    """MOMENTS of `count` things in a row at even distances, the first and the last among them."""
    if not count:
        return []
    return [int(n) for n in np.unique(np.linspace(0, count - 1, MOMENTS).round())]


def _read_first_rows(
    folder: RunFolder, scored: ScoredCheckpoint, task: str
) -> Iterator[Mapping[str, Any]]:
    card = scorecard_folder(folder, scored.evaluation, scored.step, scored.attempt)
    path = storage.join(card, "rows", task, "00000.jsonl")
    if not storage.exists(path):  # scorecards may be deleted to save room; the scores stay
        return
    for line in storage.read(path).decode().splitlines()[:PROMPTS]:
        row = json.loads(line)
        if "written" in row or "choices" in row:
            yield row


def _follow_prompt(
    task: str, rows: Sequence[tuple[ScoredCheckpoint, Mapping[str, Any]]]
) -> FollowedPrompt:
    _, first = rows[0]
    answers = []
    for scored, row in rows:
        measure, worth = next(iter(row["scores"].items()))
        answers.append(AnswerAt(scored.step, row.get("written", row["given"]), measure, worth))
    return FollowedPrompt(
        f"{task}, row {first['row']}", first["prompt"], first["expected"], tuple(answers)
    )
