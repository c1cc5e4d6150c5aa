"""Batches of reinforcement learning with partial rollouts, continued over several batches.

A wave continues each unfinished completion by up to `budget` tokens. If the wave has room left, it
also starts the groups of further prompts. So if no completion needs more than the budget, a batch
is one wave of new prompts. The groups of a batch, and the completions left for the next batch,
follow from what the previous batch left and from the weights.

A group is identified by the place of its prompt in the order of prompts. Groups start, and are
stored, in that order. Each token keeps the log-probability of its sampling, the log-probability
that training computes with the same weights, and the number of the batch that had these weights. A
completion is scored when it ends, together with the other completions of the unit that end then.

Shapes: R completions of a unit or a wave, T tokens or positions of the longest, G groups, S
completions of one group, B completions of a micro-batch.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainrig.posttrain.prompt_text import PromptEncoder
from trainrig.posttrain.rewards.weighted_rewards import RewardScores
from trainrig.rl import rollout_batches
from trainrig.rl.reinforcement_run_file import ReinforcementLearning, Rollouts
from trainrig.rl.rollout_generation import Transcript
from trainrig.rl.rollout_maker import NO_ARRAYS, TOTALS, Arrays, Waves, set_width
from trainrig.tokens import batches

# Arrays of completions in progress. Further arrays are SAMPLED and BEHAVIOUR [R, T], FINISHED [R],
# and for ended completions TOTALS, REWARD_FAULTS and the parts of the reward, all [R].
PLACE = "place"  # [R] place of the prompt
SAMPLE = "sample"  # [R] number of the completion in its group
BORN = "born"  # [R] number of the batch that started the completion
OVER = "over"  # [R] 1: the completion has ended
LENGTH = "length"  # [R] tokens so far
COMPLETIONS = "completions"  # [R, T] token ids
VERSIONS = "versions"  # [R, T] batch whose weights sampled the token
NEXT = "next"  # [1] place of the next prompt to start
NUMBER = "number"  # [1] batch that the wave samples for

Rows = dict[str, NDArray[Any]]
# Function that builds the sampled micro-batches of a batch from its number, the rows of its groups,
# the number of waves it took, and the number of completions that are still unfinished.
Assemble = Callable[[int, Rows, int, int], list[Arrays]]


class PartialWaves(Waves):
    """Sampling waves of one batch with partial rollouts."""

    def __init__(
        self,
        wanted: Rollouts,
        parts: Sequence[str],
        number: int,
        left: Arrays,
        assemble: Assemble,
    ) -> None:
        """Continue the completions that the previous batch left.

        Args:
            wanted: Settings of the rollouts.
            parts: Names of the rewards.
            number: Number of the batch.
            left: Result of `list_left` of the batch before; empty for the first batch.
            assemble: Function that builds the sampled micro-batches.
        """
        assert wanted.partial, "completions are left off"
        self._wanted = wanted
        self._parts = parts
        self._number = number
        self._staleness = wanted.partial.staleness
        self._assemble = assemble
        self._rows: Rows = {name: array for name, array in left.items() if name != NEXT}
        self._next = int(left[NEXT][0]) if left else 0
        self._unfinished = np.zeros(0, dtype=np.int64)
        self._waves = 0

    def next(self) -> tuple[int, Arrays]:
        """Start new groups, and return the number of units and the completions to continue."""
        self._begin_groups()
        self._unfinished = np.flatnonzero(self._rows[OVER] == 0)
        units = -(-len(self._unfinished) // self._wanted.micro_batch)
        to_continue = _trim(_select_rows(self._rows, self._unfinished))
        return units, {**to_continue, NUMBER: np.array([self._number])}

    def take(self, units: Sequence[Arrays]) -> None:
        """Store the continued completions of the wave that `next` described."""
        rest = np.delete(np.arange(len(self._rows[PLACE])), self._unfinished)
        # Restore the order of the completions from before the wave.
        back = np.argsort(np.concatenate([rest, self._unfinished]), kind="stable")
        self._rows = _select_rows(_concatenate([_select_rows(self._rows, rest), *units]), back)
        self._waves += 1

    def find_filled(self) -> Sequence[Arrays] | None:
        """Return the sampled micro-batches of the batch, or None to request another wave."""
        if not self._rows:
            return None
        samples = self._wanted.samples
        born_G = self._rows[BORN][::samples]
        whole_G = self._rows[OVER].reshape(-1, samples).min(1) == 1
        groups = choose_groups(whole_G, born_G, self._number, self._wanted.prompts, self._staleness)
        if groups is None:
            return None
        is_taken_R = np.repeat(np.isin(np.arange(len(born_G)), groups), samples)
        taken = _select_rows(self._rows, is_taken_R)
        self._rows = _trim(_select_rows(self._rows, ~is_taken_R))
        unfinished = int((self._rows[OVER] == 0).sum())
        return self._assemble(self._number, taken, self._waves, unfinished)

    def list_left(self) -> Arrays:
        """Return the completions, and the place of the next prompt, for the next batch."""
        return {**self._rows, NEXT: np.array([self._next])}

    def _begin_groups(self) -> None:
        """Start the new groups that fit into a wave and can be trained on within the staleness."""
        wanted = self._wanted
        rows = len(self._rows[PLACE]) if self._rows else 0
        unfinished = int((self._rows[OVER] == 0).sum()) if self._rows else 0
        free_groups = wanted.prompts - -(-unfinished // wanted.samples)
        in_time = wanted.prompts * (self._staleness + 1) - rows // wanted.samples
        count = max(0, min(free_groups, in_time))
        begun = self._build_rows(np.arange(self._next, self._next + count))
        self._rows = _concatenate([self._rows, begun]) if self._rows else begun
        self._next += count

    def _build_rows(self, places: NDArray[np.int64]) -> Rows:
        """Return empty completions for the prompts at `places`."""
        samples = self._wanted.samples
        count = len(places) * samples
        zeros = np.zeros(count, dtype=np.int64)
        no_tokens = np.zeros((count, 0))
        scores: Rows = {
            TOTALS: zeros.astype(np.float64),
            batches.REWARD_FAULTS: zeros.astype(np.float32),
        }
        scores |= {batches.REWARD_PART + name: zeros.astype(np.float32) for name in self._parts}
        return {
            PLACE: np.repeat(places, samples),
            SAMPLE: np.tile(np.arange(samples), len(places)),
            BORN: zeros + self._number,
            OVER: zeros,
            batches.FINISHED: zeros,
            LENGTH: zeros,
            COMPLETIONS: no_tokens.astype(np.int64),
            VERSIONS: no_tokens.astype(np.int64),
            batches.SAMPLED: no_tokens.astype(np.float32),
            batches.BEHAVIOUR: no_tokens.astype(np.float32),
            **scores,
        }


def choose_groups(
    whole_G: NDArray[np.bool_],
    born_G: NDArray[np.int64],
    number: int,
    prompts: int,
    staleness: int,
) -> NDArray[np.int64] | None:
    """Choose the `prompts` oldest completed groups for batch `number`.

    Returns None if there are fewer completed groups, or if the remaining groups could not all be
    trained on in time.

    A group is due `staleness` batches after the batch that started it. The oldest completed groups
    are taken first, so the rest can be in time if, for each k, at most k × `prompts` groups are due
    within the next k batches. Once all groups are completed this holds, if it held before and at
    most `prompts` × (`staleness` + 1) groups were ever in progress.
    """
    chosen = np.flatnonzero(whole_G)[:prompts]
    if len(chosen) < prompts:
        return None
    due_G = np.delete(born_G, chosen) + staleness - number  # batches until each group is due
    within = [int((due_G <= k).sum()) <= k * prompts for k in range(staleness + 1)]
    return chosen if all(within) else None


def select_unit(wave_input: Arrays, index: int, micro_batch: int) -> Rows:
    """Return the completions of unit `index` of a wave."""
    rows = {name: array for name, array in wave_input.items() if name != NUMBER}
    return _trim(_select_rows(rows, slice(index * micro_batch, (index + 1) * micro_batch)))


def _select_rows(rows: Arrays, which: Any) -> Rows:
    return {name: array[which] for name, array in rows.items()}


def _trim(rows: Rows) -> Rows:
    """Cut the arrays of `rows` to the longest completion."""
    return _widen(rows, int(rows[LENGTH].max(initial=0)))


def _widen(rows: Arrays, width: int) -> Rows:
    return {
        name: set_width(array, width, 0) if array.ndim == 2 else array
        for name, array in rows.items()
    }


def _concatenate(parts: Sequence[Arrays]) -> Rows:
    """Concatenate `parts`, padded to the longest completion."""
    width = max(part[COMPLETIONS].shape[1] for part in parts)
    widened = [_widen(part, width) for part in parts]
    return {name: np.concatenate([part[name] for part in widened]) for name in widened[0]}


class PartialRolloutBatches(rollout_batches.RolloutBatches):
    """Maker of the batches of a run with partial rollouts."""

    carries_over = True

    def __init__(self, run: ReinforcementLearning, encoder: PromptEncoder, prompts: str) -> None:
        """Store the settings of `run`; `prompts` is the fingerprint of the prompt files."""
        super().__init__(run, encoder, prompts)
        assert run.rollouts.partial, "completions are left off"
        self._budget = run.rollouts.partial.budget

    def begin(self, number: int, left: Arrays) -> PartialWaves:
        """Return the waves of batch `number`, which continue what the batch before `left`."""
        parts = [part.name for part in self._run.rewards]
        return PartialWaves(self._run.rollouts, parts, number, left, self._assemble)

    def sample(self, model: Any, number: int, index: int, wave_input: Arrays = NO_ARRAYS) -> Arrays:
        """Continue the completions of unit `index` of a wave by up to the budget of tokens.

        Raises DataError if the log-probabilities of sampling and of training with the same weights
        differ by more than `largest_gap`.
        """
        unit = select_unit(wave_input, index, self._run.rollouts.micro_batch)
        said = [self._build_transcript(unit, row) for row in range(len(unit[PLACE]))]
        self._sampler.go_on(model, said, self._budget)
        found = self._extend_completions(unit, said, int(wave_input[NUMBER][0]))
        self._read_new(model, said, unit[LENGTH], found)
        self._score(said, found)
        return found

    def _build_transcript(self, rows: Rows, row: int) -> Transcript:
        """Return completion `row` of `rows` with its tokens so far."""
        place = int(rows[PLACE][row])
        length = int(rows[LENGTH][row])
        wanted = self._run.rollouts
        return Transcript(
            prompt=self._prompts.find(place, wanted.seed, 0),
            sample=place * wanted.samples + int(rows[SAMPLE][row]),
            ids=rows[COMPLETIONS][row, :length].tolist(),
            drawn=[True] * length,
            log_probabilities=rows[batches.SAMPLED][row, :length].tolist(),
            finished=bool(rows[batches.FINISHED][row]),
        )

    def _extend_completions(self, unit: Rows, said: Sequence[Transcript], number: int) -> Rows:
        """Return `unit` with the new tokens of `said`, which the weights of batch `number` drew."""
        width = max(len(transcript.ids) for transcript in said)
        found = {
            name: np.zeros((len(said), width), dtype=array.dtype) if array.ndim == 2 else array
            for name, array in unit.items()
        }
        for row, transcript in enumerate(said):
            before = int(unit[LENGTH][row])
            after = len(transcript.ids)
            found[COMPLETIONS][row, :after] = transcript.ids
            found[batches.SAMPLED][row, :after] = transcript.log_probabilities
            for name in (VERSIONS, batches.BEHAVIOUR):
                found[name][row, :before] = unit[name][row, :before]
            found[VERSIONS][row, before:after] = number
        found[LENGTH] = np.array([len(transcript.ids) for transcript in said], dtype=np.int64)
        found[OVER] = np.array([transcript.over for transcript in said], dtype=np.int64)
        found[batches.FINISHED] = np.array(
            [transcript.finished for transcript in said], dtype=np.int64
        )
        return found

    def _read_new(
        self,
        model: Any,
        said: Sequence[Transcript],
        before_R: NDArray[np.int64],
        found: Rows,
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
        arrays: Rows = {
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

    def _score(self, said: Sequence[Transcript], found: Rows) -> None:
        """Score the completions that have ended, and write the scores into `found`."""
        over = [row for row, transcript in enumerate(said) if transcript.over]
        if not over:
            return
        completions = [said[row].build_completion() for row in over]
        scores = self._rewards.score(completions, (), [said[row].prompt.number for row in over])
        faults = sum(scores.faults.values()) / len(over)
        for name, values in (
            (TOTALS, scores.totals),
            (batches.REWARD_FAULTS, [faults] * len(over)),
            *((batches.REWARD_PART + name, part) for name, part in scores.parts.items()),
        ):
            found[name] = found[name].copy()
            found[name][over] = values

    def _assemble(self, number: int, rows: Rows, waves: int, unfinished: int) -> list[Arrays]:
        """Return the sampled micro-batches of batch `number` from `rows` of whole groups."""
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
        """Return one sampled micro-batch; `unfinished` is a share per completion of the batch."""
        said = [self._build_transcript(rows, row) for row in range(len(rows[PLACE]))]
        samples = self._run.rollouts.samples
        names = [part.name for part in self._run.rewards]
        groups = [
            rollout_batches.CompletionGroup(
                tuple(said[begin : begin + samples]),
                RewardScores(
                    tuple(rows[TOTALS][begin : begin + samples].tolist()),
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
            stale_BT[row, begin : begin + length] = number - rows[VERSIONS][row, :length]
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
