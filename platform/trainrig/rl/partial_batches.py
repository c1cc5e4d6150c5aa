"""Batches of reinforcement learning with partial rollouts, continued over several batches.

Each token keeps the log-probability of its sampling, the log-probability that training computes
with the same weights, and the number of the batch that had these weights. A completion is scored
when it ends, together with the other completions of the unit that end then.

Shapes: B completions of a micro-batch, T positions, R completions of a unit.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainrig.posttrain.prompt_text import PromptEncoder
from trainrig.posttrain.rewards.weighted_rewards import RewardScores
from trainrig.rl import rollout_batches, sampling_waves
from trainrig.rl.reinforcement_run_file import ReinforcementLearning
from trainrig.rl.rollout_maker import NO_ARRAYS, Arrays
from trainrig.rl.transcripts import Transcript
from trainrig.tokens import batches


class PartialRolloutBatches(rollout_batches.RolloutBatches):
    """Maker of the batches of a run with partial rollouts."""

    carries_over = True

    def __init__(self, run: ReinforcementLearning, encoder: PromptEncoder, prompts: str) -> None:
        """Store the settings of `run`; `prompts` is the fingerprint of the prompt files."""
        super().__init__(run, encoder, prompts)
        assert run.rollouts.partial, "completions are left off"
        self._budget = run.rollouts.partial.budget

    def begin(self, number: int, left: Arrays) -> sampling_waves.PartialWaves:
        """Return the waves of batch `number`, which continue what the batch before `left`."""
        parts = [part.name for part in self._run.rewards]
        return sampling_waves.PartialWaves(self._run.rollouts, parts, number, left, self._assemble)

    def sample(self, model: Any, number: int, index: int, wave_input: Arrays = NO_ARRAYS) -> Arrays:
        """Continue the completions of unit `index` of a wave by up to the budget of tokens.

        Raises DataError if the log-probabilities of sampling and of training with the same weights
        differ by more than `largest_gap`.
        """
        unit = sampling_waves.select_unit(wave_input, index, self._run.rollouts.micro_batch)
        said = [self._build_transcript(unit, row) for row in range(len(unit[sampling_waves.PLACE]))]
        self._sampler.go_on(model, said, self._budget)
        found = self._extend_completions(unit, said, int(wave_input[sampling_waves.NUMBER][0]))
        self._read_new(model, said, unit[sampling_waves.LENGTH], found)
        self._score(said, found)
        return found

    def _build_transcript(self, rows: sampling_waves.Rows, row: int) -> Transcript:
        """Return completion `row` of `rows` with its tokens so far."""
        place = int(rows[sampling_waves.PLACE][row])
        length = int(rows[sampling_waves.LENGTH][row])
        wanted = self._run.rollouts
        return Transcript(
            prompt=self._prompts.find(place, wanted.seed, 0),
            sample=place * wanted.samples + int(rows[sampling_waves.SAMPLE][row]),
            ids=rows[sampling_waves.COMPLETIONS][row, :length].tolist(),
            drawn=[True] * length,
            log_probabilities=rows[batches.SAMPLED][row, :length].tolist(),
            finished=bool(rows[batches.FINISHED][row]),
        )

    def _extend_completions(
        self, unit: sampling_waves.Rows, said: Sequence[Transcript], number: int
    ) -> sampling_waves.Rows:
        """Return `unit` with the new tokens of `said`, which the weights of batch `number` drew."""
        width = max(len(transcript.ids) for transcript in said)
        found = {
            name: np.zeros((len(said), width), dtype=array.dtype) if array.ndim == 2 else array
            for name, array in unit.items()
        }
        for row, transcript in enumerate(said):
            before = int(unit[sampling_waves.LENGTH][row])
            after = len(transcript.ids)
            found[sampling_waves.COMPLETIONS][row, :after] = transcript.ids
            found[batches.SAMPLED][row, :after] = transcript.log_probabilities
            for name in (sampling_waves.VERSIONS, batches.BEHAVIOUR):
                found[name][row, :before] = unit[name][row, :before]
            found[sampling_waves.VERSIONS][row, before:after] = number
        found[sampling_waves.LENGTH] = np.array(
            [len(transcript.ids) for transcript in said], dtype=np.int64
        )
        found[sampling_waves.OVER] = np.array(
            [transcript.over for transcript in said], dtype=np.int64
        )
        found[batches.FINISHED] = np.array(
            [transcript.finished for transcript in said], dtype=np.int64
        )
        return found

    def _read_new(
        self,
        model: Any,
        said: Sequence[Transcript],
        before_R: NDArray[np.int64],
        found: sampling_waves.Rows,
    ) -> None:
        """Write the log-probabilities of the new tokens, computed as in training, into `found`.

        New are the tokens of a completion after its first `before_R`.
        """
        width = max(len(transcript.prompt.ids) + len(transcript.ids) for transcript in said) - 1
        padding = self._encoder.encoder.special_tokens.padding
        ids_RT = np.full((len(said), width), padding, dtype=np.int64)
        targets_RT = np.full_like(ids_RT, batches.IGNORE)
        sampled_RT = np.zeros(ids_RT.shape, dtype=np.float32)
        new = []
        for row, (transcript, before) in enumerate(zip(said, before_R.tolist(), strict=True)):
            whole = (*transcript.prompt.ids, *transcript.ids)
            first = len(transcript.prompt.ids) - 1
            ids_RT[row, : len(whole) - 1] = whole[:-1]
            new.append(slice(first + before, len(whole) - 1))
            targets_RT[row, new[-1]] = transcript.ids[before:]
            sampled_RT[row, new[-1]] = transcript.log_probabilities[before:]
        arrays: sampling_waves.Rows = {
            batches.IDS: ids_RT,
            batches.TARGETS: targets_RT,
            batches.SAMPLED: sampled_RT,
        }
        read_RT = self._read_log_probabilities(
            model, *rollout_batches.move_to_device(model, arrays)
        )
        self._check_gap(read_RT, arrays)
        for row, (transcript, before) in enumerate(zip(said, before_R.tolist(), strict=True)):
            found[batches.BEHAVIOUR][row, before : len(transcript.ids)] = read_RT[row, new[row]]

    def _score(self, said: Sequence[Transcript], found: sampling_waves.Rows) -> None:
        """Score the completions that have ended, and write the scores into `found`."""
        over = [row for row, transcript in enumerate(said) if transcript.over]
        if not over:
            return
        completions = [said[row].build_completion() for row in over]
        scores = self._rewards.score(completions, (), [said[row].prompt.number for row in over])
        faults = sum(scores.faults.values()) / len(over)
        for name, values in (
            (sampling_waves.TOTALS, scores.totals),
            (batches.REWARD_FAULTS, [faults] * len(over)),
            *((batches.REWARD_PART + name, part) for name, part in scores.parts.items()),
        ):
            found[name] = found[name].copy()
            found[name][over] = values

    def _assemble(
        self, number: int, rows: sampling_waves.Rows, waves: int, unfinished: int
    ) -> list[Arrays]:
        """Return the sampled micro-batches of batch `number` from `rows` of whole groups."""
        size = self._run.rollouts.micro_batch
        return [
            self._build_micro_batch(
                {name: array[begin : begin + size] for name, array in rows.items()},
                number,
                waves,
                unfinished / len(rows[sampling_waves.PLACE]),
            )
            for begin in range(0, len(rows[sampling_waves.PLACE]), size)
        ]

    def _build_micro_batch(
        self, rows: sampling_waves.Rows, number: int, waves: int, unfinished: float
    ) -> dict[str, NDArray[Any]]:
        """Return one sampled micro-batch; `unfinished` is a share per completion of the batch."""
        said = [self._build_transcript(rows, row) for row in range(len(rows[sampling_waves.PLACE]))]
        samples = self._run.rollouts.samples
        names = [part.name for part in self._run.rewards]
        groups = [
            rollout_batches.CompletionGroup(
                tuple(said[begin : begin + samples]),
                RewardScores(
                    tuple(rows[sampling_waves.TOTALS][begin : begin + samples].tolist()),
                    {
                        n: tuple(rows[batches.REWARD_PART + n][begin : begin + samples])
                        for n in names
                    },
                    {},
                ),
            )
            for begin in range(0, len(said), samples)
        ]
        arrays = self._build_arrays(groups)
        stale_BT = np.zeros(arrays[batches.IDS].shape, dtype=np.int64)
        behaviour_BT = np.zeros(stale_BT.shape, dtype=np.float32)
        for row, transcript in enumerate(said):
            begin = len(transcript.prompt.ids) - 1
            length = len(transcript.ids)
            stale_BT[row, begin : begin + length] = (
                number - rows[sampling_waves.VERSIONS][row, :length]
            )
            behaviour_BT[row, begin : begin + length] = rows[batches.BEHAVIOUR][row, :length]
        ones_B = np.ones(len(said), dtype=np.float32)
        return arrays | {
            batches.REWARD_FAULTS: rows[batches.REWARD_FAULTS],
            batches.BEHAVIOUR: behaviour_BT,
            batches.STALENESS: stale_BT,
            batches.WAVES: ones_B * waves,
            batches.UNFINISHED: ones_B * np.float32(unfinished),
        }

    def _weigh_or_check(self, arrays: dict[str, NDArray[Any]]) -> None:
        """Add importance weights for the tokens that were sampled from earlier weights."""
        fresh_BT = arrays[batches.STALENESS] == 0
        arrays[batches.BEHAVIOUR] = np.where(
            fresh_BT, arrays[batches.OLD], arrays[batches.BEHAVIOUR]
        )
        self._check_gap(arrays[batches.BEHAVIOUR], arrays)
        self._add_importance(arrays)
