"""Completions that a run's model sampled, with their rewards, from its stored batches."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
from trainrig.train.run.run_folder import RunFolder
from trainrig.train.run.scores.answers import AnswerAt, FollowedPrompt, choose_moments
from trainrig.train.run.stored_batches import StoredBatch, list_stored_batches

PROMPTS = 3  # number of prompts to follow over a run


@dataclass(frozen=True)
class StoredAnswer:
    """Completion that a run sampled and was trained on."""

    prompt: str
    text: str  # everything after the prompt, including what an environment wrote
    reward: float
    advantage: float
    parts: Mapping[str, float]  # parts of the reward by name, before weighting


@dataclass(frozen=True)
class BatchAnswers:
    """Completions of one batch."""

    step: int  # updates made before the batch
    answers: Sequence[StoredAnswer]

    def sort_by_worth(self) -> list[StoredAnswer]:
        """Return the completions by reward, lowest first; equal ones in the order of sampling."""
        return sorted(self.answers, key=lambda answer: answer.reward)


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
        for number, (prompt, said) in enumerate(again[:PROMPTS], 1)
    ]


def _read_answers(batch: StoredBatch, encoder: Encoder) -> BatchAnswers:
    found: list[StoredAnswer] = []
    for index in range(len(batch.files)):
        micro = batch.read_micro_batch(index)
        found += [_read_answer(micro, row, encoder) for row in range(len(micro.arrays[IDS]))]
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
