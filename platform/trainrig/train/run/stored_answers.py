"""What a run's model said on its way, with what it was worth, from the batches that it stored."""

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
from trainrig.tokens.encoding.encode import Encoder
from trainrig.tokens.special_tokens import TOKENIZER, TokenizerFiles
from trainrig.train.run.run_folder import RunFolder
from trainrig.train.run.scores.answers import AnswerAt, FollowedPrompt, choose_moments
from trainrig.train.run.stored_batches import StoredBatch, list_stored_batches

PROMPTS = 3  # that are followed over a run


@dataclass(frozen=True)
class StoredAnswer:
    """A completion that a run drew and was trained on."""

    prompt: str
    text: str  # all that follows the prompt, what an environment said among it
    reward: float
    advantage: float
    parts: Mapping[str, float]  # of the reward, by name, before their weights


@dataclass(frozen=True)
class BatchAnswers:
    """The completions of one batch."""

    step: int  # updates made before it
    answers: Sequence[StoredAnswer]

    def sort_by_worth(self) -> list[StoredAnswer]:
        """The worst first; those worth the same in the order that they were drawn in."""
        return sorted(self.answers, key=lambda each: each.reward)


def read_answers(folder: RunFolder) -> list[BatchAnswers]:
    """Those of some batches of the run in `folder`, in order of steps; none of a run without, and
    before its first checkpoint, which has the tokenizer."""
    batches = list_stored_batches(folder)
    tokenizers = sorted(storage.list_files(folder.checkpoints, TOKENIZER))
    if not (batches and tokenizers):
        return []
    encoder = Encoder.of(TokenizerFiles.read(tokenizers[-1]))
    return [_read_answers(batches[number], encoder) for number in choose_moments(len(batches))]


def follow_prompts(batches: Sequence[BatchAnswers]) -> list[FollowedPrompt]:
    """The first completion of each of `batches` to prompts that several of them have, those first
    that most have."""
    by_prompt: dict[str, dict[int, AnswerAt]] = {}
    for batch in batches:
        for each in batch.answers:
            said = AnswerAt(batch.step, each.text, "reward", each.reward)
            by_prompt.setdefault(each.prompt, {}).setdefault(batch.step, said)
    again = [(prompt, said) for prompt, said in by_prompt.items() if len(said) > 1]
    again.sort(key=lambda each: -len(each[1]))
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
    ids, targets = micro.arrays[IDS][row], micro.arrays[TARGETS][row]
    drawn = np.flatnonzero(targets != IGNORE)
    first, last = int(drawn[0]), int(drawn[-1])
    said = [*ids[first + 1 : last + 1].tolist(), int(targets[last])]
    parts = {
        name.removeprefix(REWARD_PART): float(array[row])
        for name, array in sorted(micro.arrays.items())
        if name.startswith(REWARD_PART)
    }
    reward, advantage = (float(micro.arrays[name][row]) for name in (REWARDS, ADVANTAGES))
    prompt = encoder.decode(ids[: first + 1].tolist())
    return StoredAnswer(prompt, encoder.decode(said), reward, advantage, parts)
