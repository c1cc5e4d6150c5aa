"""Answers of a run's model in the report: the same prompts over time, best and worst samples.

Answers to the same prompts come from the rows that evaluations store, completions with their
rewards from the batches that the run made itself. Overrated completions are those that a trained
reward rates high and a verifier low.

    rows/TASK/00000.jsonl   in a scorecard's folder: a task's first rows, as `evaluate` scored them
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainrig import storage
from trainrig.tokens.batches import (
    ADVANTAGES,
    IDS,
    IGNORE,
    REWARD_PART,
    REWARDS,
    TARGETS,
    MicroBatch,
)
from trainrig.tokens.special_tokens import TOKENIZER, TokenizerFiles
from trainrig.tokens.tokenizers.encode import Encoder
from trainrig.train.evaluations import ScoredCheckpoint
from trainrig.train.run.checkpoint_scores import scorecard_folder
from trainrig.train.run.run_folder import RunFolder
from trainrig.train.run.step_data import StoredBatch, list_stored_batches

MOMENTS = 5  # checkpoints of a run to read: the first, the last, and some between
TASKS = 3  # tasks of an evaluation to read
TASK_PROMPTS = 3  # prompts of a task to read: its first rows


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

    def group_equal(self) -> list[tuple[AnswerAt, AnswerAt]]:
        """Return the first and the last of each row of equal answers, in order of steps."""
        found: list[tuple[AnswerAt, AnswerAt]] = []
        for answer in self.answers:
            if found and (found[-1][1].text, found[-1][1].worth) == (answer.text, answer.worth):
                found[-1] = (found[-1][0], answer)
            else:
                found.append((answer, answer))
        return found


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
    for line in storage.read(path).decode().splitlines()[:TASK_PROMPTS]:
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


FOLLOWED_PROMPTS = 3  # number of prompts to follow over a run
SHOWN = 2  # samples from either end of a batch


@dataclass(frozen=True)
class StoredAnswer:
    """Completion that a run sampled and was trained on."""

    prompt: str
    text: str  # everything after the prompt, including what an environment wrote
    reward: float
    advantage: float
    parts: Mapping[str, float]  # parts of the reward by name, before weighting

    def describe_parts(self) -> str:
        """Return the parts of the reward with their scores, as one line."""
        return ", ".join(f"{name} {score:.3g}" for name, score in self.parts.items())


@dataclass(frozen=True)
class BatchAnswers:
    """Completions of one batch."""

    step: int  # updates made before the batch
    answers: Sequence[StoredAnswer]

    def sort_by_worth(self) -> list[StoredAnswer]:
        """Return the completions by reward, lowest first; equal ones in the order of sampling."""
        return sorted(self.answers, key=lambda answer: answer.reward)

    def pick_ends(self) -> list[tuple[str, Sequence[StoredAnswer]]]:
        """Return the completions with the lowest and the highest reward, each with a label."""
        ordered = self.sort_by_worth()
        some = min(SHOWN, len(ordered) // 2)
        if not some:
            return [("The only one", ordered[:1])]
        best = ordered[-some:][::-1]
        return [("Among the worst", ordered[:some]), ("Among the best", best)]

    def find_overrated(self, name: str) -> tuple[int, list[StoredAnswer]]:
        """Return how many completions have the part `name`, and the overrated ones of them.

        These have a reward of at least the mean, with a score by the part, which has no weight in
        the reward, below its mean. Those with the highest reward come first.
        """
        known = [answer for answer in self.answers if name in answer.parts]
        mean = sum(answer.reward for answer in known) / max(1, len(known))
        of_part = sum(answer.parts[name] for answer in known) / max(1, len(known))
        found = [e for e in known if e.reward >= mean and e.parts[name] < of_part]
        return len(known), sorted(found, key=lambda answer: -answer.reward)


def read_answers(folder: RunFolder) -> list[BatchAnswers]:
    """Read the completions of a few batches of a run, spread over it, in order of steps.

    Returns [] for a run without stored batches, or before its first checkpoint, which has the
    tokenizer.
    """
    batches = list_stored_batches(folder)
    tokenizers = sorted(storage.list_files(folder.checkpoints, TOKENIZER))
    if not (batches and tokenizers):
        return []
    encoder = Encoder.of(TokenizerFiles.read(tokenizers[-1]))
    return [_read_answers(batches[number], encoder) for number in choose_moments(len(batches))]


def follow_prompts(batches: Sequence[BatchAnswers]) -> list[FollowedPrompt]:
    """Return prompts that occur in several of `batches`, with the first completion of each.

    Those in most batches come first.
    """
    by_prompt: dict[str, dict[int, AnswerAt]] = {}
    for batch in batches:
        for answer in batch.answers:
            said = AnswerAt(batch.step, answer.text, "reward", answer.reward)
            by_prompt.setdefault(answer.prompt, {}).setdefault(batch.step, said)
    again = [(prompt, said) for prompt, said in by_prompt.items() if len(said) > 1]
    again.sort(key=lambda entry: -len(entry[1]))
    return [
        FollowedPrompt(f"Prompt {number}", prompt, None, tuple(said.values()))
        for number, (prompt, said) in enumerate(again[:FOLLOWED_PROMPTS], 1)
    ]


def _read_answers(batch: StoredBatch, encoder: Encoder) -> BatchAnswers:
    found: list[StoredAnswer] = []
    for index in range(len(batch.files)):
        micro = batch.read_micro_batch(index)
        # A masked prompt has no answer, and its rows have no target.
        answered = np.flatnonzero((micro.arrays[TARGETS] != IGNORE).any(axis=1))
        found += [_read_answer(micro, row, encoder) for row in answered.tolist()]
    return BatchAnswers(batch.step, found)


def _read_answer(micro: MicroBatch, row: int, encoder: Encoder) -> StoredAnswer:
    ids = micro.arrays[IDS][row]
    targets = micro.arrays[TARGETS][row]
    drawn = np.flatnonzero(targets != IGNORE)
    first = int(drawn[0])
    last = int(drawn[-1])
    said = [*ids[first + 1 : last + 1].tolist(), int(targets[last])]
    parts = {
        name.removeprefix(REWARD_PART): float(array[row])
        for name, array in sorted(micro.arrays.items())
        if name.startswith(REWARD_PART)
    }
    reward, advantage = (float(micro.arrays[name][row]) for name in (REWARDS, ADVANTAGES))
    prompt = encoder.decode(ids[: first + 1].tolist())
    return StoredAnswer(prompt, encoder.decode(said), reward, advantage, parts)
