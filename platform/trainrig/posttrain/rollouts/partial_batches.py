"""The batches of reinforcement learning whose completions are left off and gone on with.

Each token keeps the log-probability that it was drawn with, that which training reads by the same
weights, and the number of the batch whose weights these were. A completion is scored by the unit
that ends it, with what else ends there.

Shapes: B completions of a micro-batch, T positions, R completions of a unit.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainrig.posttrain.prompt_text import PromptEncoder
from trainrig.posttrain.rewards.weighted import RewardScores
from trainrig.posttrain.rollouts.batches import CompletionGroup, RolloutBatches, move_to_device
from trainrig.posttrain.rollouts.partial_waves import (
    COMPLETIONS,
    LENGTH,
    NUMBER,
    OVER,
    PLACE,
    SAMPLE,
    VERSIONS,
    PartialWaves,
    Rows,
    select_unit,
)
from trainrig.posttrain.rollouts.run_file import PartialRollouts, ReinforcementLearning
from trainrig.posttrain.rollouts.sampled_groups import TOTALS
from trainrig.posttrain.rollouts.transcripts import Transcript
from trainrig.tokens.batch_makers import NO_ARRAYS, Arrays
from trainrig.tokens.batches import (
    BEHAVIOUR,
    FINISHED,
    IDS,
    IGNORE,
    OLD,
    REWARD_FAULTS,
    REWARD_PART,
    SAMPLED,
    STALENESS,
    TARGETS,
    UNFINISHED,
    WAVES,
)


class PartialRolloutBatches(RolloutBatches):
    """What such a run's batches are made by."""

    carries_over = True

    def __init__(
        self,
        run: ReinforcementLearning,
        partial: PartialRollouts,
        encoder: PromptEncoder,
        prompts: str,
    ) -> None:
        """As RolloutBatches, with what leaves completions off."""
        super().__init__(run, encoder, prompts)
        self._budget = partial.budget

    def begin(self, number: int, left: Arrays) -> PartialWaves:
        """See RolloutMaker."""
        parts = [part.name for part in self._run.rewards]
        return PartialWaves(self._run.rollouts, parts, number, left, self._assemble)

    def sample(self, model: Any, number: int, index: int, asked: Arrays = NO_ARRAYS) -> Arrays:
        """See RolloutMaker. Raises DataError where what was sampled is not what training reads of
        the same weights."""
        unit = select_unit(asked, index, self._run.rollouts.micro_batch)
        said = [self._build_transcript(unit, row) for row in range(len(unit[PLACE]))]
        self._sampler.go_on(model, said, self._budget)
        found = self._extend_completions(unit, said, int(asked[NUMBER][0]))
        self._read_new(model, said, unit[LENGTH], found)
        self._score(said, found)
        return found

    def _build_transcript(self, rows: Rows, row: int) -> Transcript:
        """The completion `row` of `rows`, as it stands."""
        place, length = int(rows[PLACE][row]), int(rows[LENGTH][row])
        wanted = self._run.rollouts
        return Transcript(
            prompt=self._prompts.find(place, wanted.seed, 0),
            sample=place * wanted.samples + int(rows[SAMPLE][row]),
            ids=rows[COMPLETIONS][row, :length].tolist(),
            drawn=[True] * length,
            log_probabilities=rows[SAMPLED][row, :length].tolist(),
            finished=bool(rows[FINISHED][row]),
        )

    def _extend_completions(self, unit: Rows, said: Sequence[Transcript], number: int) -> Rows:
        """`unit` with what was `said` for batch `number` since."""
        width = max(len(each.ids) for each in said)
        found = {
            name: np.zeros((len(said), width), dtype=array.dtype) if array.ndim == 2 else array
            for name, array in unit.items()
        }
        for row, each in enumerate(said):
            before, after = int(unit[LENGTH][row]), len(each.ids)
            found[COMPLETIONS][row, :after] = each.ids
            found[SAMPLED][row, :after] = each.log_probabilities
            for name in (VERSIONS, BEHAVIOUR):
                found[name][row, :before] = unit[name][row, :before]
            found[VERSIONS][row, before:after] = number
        found[LENGTH] = np.array([len(each.ids) for each in said], dtype=np.int64)
        found[OVER] = np.array([each.over for each in said], dtype=np.int64)
        found[FINISHED] = np.array([each.finished for each in said], dtype=np.int64)
        return found

    def _read_new(
        self, model: Any, said: Sequence[Transcript], before_R: NDArray[np.int64], found: Rows
    ) -> None:
        """Put into `found` the log-probabilities, as training reads them, of what was said beyond
        the first `before_R` tokens."""
        width = max(len(each.prompt.ids) + len(each.ids) for each in said) - 1
        padding = self._encoder.encoder.special_tokens.padding
        ids_RT = np.full((len(said), width), padding, dtype=np.int64)
        targets_RT = np.full_like(ids_RT, IGNORE)
        sampled_RT = np.zeros(ids_RT.shape, dtype=np.float32)
        new = []
        for row, (each, before) in enumerate(zip(said, before_R.tolist(), strict=True)):
            whole, first = (*each.prompt.ids, *each.ids), len(each.prompt.ids) - 1
            ids_RT[row, : len(whole) - 1] = whole[:-1]
            new.append(slice(first + before, len(whole) - 1))
            targets_RT[row, new[-1]] = each.ids[before:]
            sampled_RT[row, new[-1]] = each.log_probabilities[before:]
        arrays: Rows = {IDS: ids_RT, TARGETS: targets_RT, SAMPLED: sampled_RT}
        read_RT = self._read(model, *move_to_device(model, arrays))
        self._check_gap(read_RT, arrays)
        for row, (each, before) in enumerate(zip(said, before_R.tolist(), strict=True)):
            found[BEHAVIOUR][row, before : len(each.ids)] = read_RT[row, new[row]]

    def _score(self, said: Sequence[Transcript], found: Rows) -> None:
        """Put into `found` what those are worth that are whole now."""
        over = [row for row, each in enumerate(said) if each.over]
        if not over:
            return
        completions = [said[row].build_completion() for row in over]
        scores = self._rewards.score(completions, (), [said[row].prompt.number for row in over])
        faults = sum(scores.faults.values()) / len(over)
        for name, values in (
            (TOTALS, scores.totals),
            (REWARD_FAULTS, [faults] * len(over)),
            *((REWARD_PART + name, each) for name, each in scores.parts.items()),
        ):
            found[name] = found[name].copy()
            found[name][over] = values

    def _assemble(self, number: int, rows: Rows, waves: int, unfinished: int) -> list[Arrays]:
        """The micro-batches, sampled, of batch `number`: `rows` of whole groups."""
        size = self._run.rollouts.micro_batch
        return [
            self._build_micro_batch(
                {name: array[begin : begin + size] for name, array in rows.items()},
                number,
                waves,
                unfinished / len(rows[PLACE]),
            )
            for begin in range(0, len(rows[PLACE]), size)
        ]

    def _build_micro_batch(
        self, rows: Rows, number: int, waves: int, unfinished: float
    ) -> dict[str, NDArray[Any]]:
        """`unfinished`: completions, for each of the batch."""
        said = [self._build_transcript(rows, row) for row in range(len(rows[PLACE]))]
        samples = self._run.rollouts.samples
        names = [part.name for part in self._run.rewards]
        groups = [
            CompletionGroup(
                tuple(said[begin : begin + samples]),
                RewardScores(
                    tuple(rows[TOTALS][begin : begin + samples].tolist()),
                    {n: tuple(rows[REWARD_PART + n][begin : begin + samples]) for n in names},
                    {},
                ),
            )
            for begin in range(0, len(said), samples)
        ]
        arrays = self._build_arrays(groups)
        stale_BT = np.zeros(arrays[IDS].shape, dtype=np.int64)
        behaviour_BT = np.zeros(stale_BT.shape, dtype=np.float32)
        for row, each in enumerate(said):
            begin, length = len(each.prompt.ids) - 1, len(each.ids)
            stale_BT[row, begin : begin + length] = number - rows[VERSIONS][row, :length]
            behaviour_BT[row, begin : begin + length] = rows[BEHAVIOUR][row, :length]
        each_B = np.ones(len(said), dtype=np.float32)
        return arrays | {
            REWARD_FAULTS: rows[REWARD_FAULTS],
            BEHAVIOUR: behaviour_BT,
            STALENESS: stale_BT,
            WAVES: each_B * waves,
            UNFINISHED: each_B * np.float32(unfinished),
        }

    def _weigh(self, arrays: dict[str, NDArray[Any]]) -> None:
        """See RolloutBatches. What the weights of OLD sampled needs no other reading."""
        fresh_BT = arrays[STALENESS] == 0
        arrays[BEHAVIOUR] = np.where(fresh_BT, arrays[OLD], arrays[BEHAVIOUR])
        self._check_gap(arrays[BEHAVIOUR], arrays)
        self._add_importance(arrays)


def open_rollouts(
    run: ReinforcementLearning, encoder: PromptEncoder, prompts: str
) -> RolloutBatches:
    """The batches of `run`; `prompts`: the fingerprint of their files."""
    if partial := run.rollouts.partial:
        return PartialRolloutBatches(run, partial, encoder, prompts)
    return RolloutBatches(run, encoder, prompts)
