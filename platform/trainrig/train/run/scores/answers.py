"""Answers of a run's checkpoints to the same prompts, from the rows that evaluations store.

rows/TASK/00000.jsonl   in a scorecard's folder: the first rows of a task, as `evaluate` scored them
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

MOMENTS = 5  # checkpoints of a run to read: the first, the last, and some between
TASKS = 3  # tasks of an evaluation to read
PROMPTS = 3  # prompts of a task to read: its first rows


@dataclass(frozen=True)
class AnswerAt:
    """Answer of the model after `step` updates, with its score."""

    step: int
    text: str
    measure: str
    worth: float


@dataclass(frozen=True)
class FollowedPrompt:
    """One prompt, and the answers to it in order of steps."""

    source: str  # description of where the prompt is from
    prompt: str
    expected: str | None  # correct answer; None: unknown
    answers: tuple[AnswerAt, ...]


def read_followed(folder: RunFolder, scored: Sequence[ScoredCheckpoint]) -> list[FollowedPrompt]:
    """Read the answers of some checkpoints of one evaluation to the first rows of its tasks.

    `scored`: the evaluation's checkpoints. Only tasks with written answers or choices are read;
    those with written answers come first.
    """
    chosen = [scored[number] for number in choose_moments(len(scored))]
    found: list[tuple[bool, list[FollowedPrompt]]] = []
    for task in sorted(
        {name for checkpoint in chosen for name in checkpoint.scores if "/" not in name}
    ):
        by_row: dict[int, list[tuple[ScoredCheckpoint, Mapping[str, Any]]]] = {}
        for checkpoint in chosen:
            for row in _read_first_rows(folder, checkpoint, task):
                by_row.setdefault(row["row"], []).append((checkpoint, row))
        if by_row:
            written = any("written" in row for rows in by_row.values() for _, row in rows)
            found.append((written, [_follow_prompt(task, rows) for rows in by_row.values()]))
    found.sort(key=lambda entry: not entry[0])
    return [prompt for _, prompts in found[:TASKS] for prompt in prompts]


def choose_moments(count: int) -> list[int]:
    """Return up to MOMENTS indices of `count` items, evenly spaced, with the first and the last."""
    if not count:
        return []
    return [int(n) for n in np.unique(np.linspace(0, count - 1, MOMENTS).round())]


def _read_first_rows(
    folder: RunFolder, scored: ScoredCheckpoint, task: str
) -> Iterator[Mapping[str, Any]]:
    card = scorecard_folder(folder, scored.evaluation, scored.step, scored.attempt)
    path = storage.join(card, "rows", task, "00000.jsonl")
    if not storage.exists(path):  # scorecards may be deleted to save space; the scores remain
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
