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
from trainrig.train.run.stored_batches import StoredBatch, stored_batches

MOMENTS = 5  # of a run that are looked at: its first batch, its last, and some between


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

    def by_worth(self) -> list[StoredAnswer]:
        """The worst first; those worth the same in the order that they were drawn in."""
        return sorted(self.answers, key=lambda each: each.reward)


def read_answers(folder: RunFolder) -> list[BatchAnswers]:
    """Those of some batches of the run in `folder`, in order of steps; none of a run without, and
    before its first checkpoint, which has the tokenizer."""
    batches = stored_batches(folder)
    tokenizers = sorted(storage.list_files(folder.checkpoints, TOKENIZER))
    if not (batches and tokenizers):
        return []
    encoder = Encoder.of(TokenizerFiles.read(tokenizers[-1]))
    chosen = np.unique(np.linspace(0, len(batches) - 1, MOMENTS).round().astype(int))
    return [_answers(batches[number], encoder) for number in chosen.tolist()]


def _answers(batch: StoredBatch, encoder: Encoder) -> BatchAnswers:
    found: list[StoredAnswer] = []
    for index in range(len(batch.files)):
        micro = batch.micro_batch(index)
        found += [_answer(micro, row, encoder) for row in range(len(micro.arrays[IDS]))]
    return BatchAnswers(batch.step, found)


def _answer(micro: MicroBatch, row: int, encoder: Encoder) -> StoredAnswer:
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
