"""The batches of reinforcement learning: completions that the model draws, with their advantages.

A micro-batch is sampled together, from its first token to its last, read once as training reads it,
and scored. Which prompts it has, and every number that is drawn, follow from the seed, the number
of the batch and the number of the micro-batch; so it is a function of these and the weights,
whichever worker makes it, and whether it is made again after a failure.

Shapes: B completions of a micro-batch, T positions, G prompts, S completions of each.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trainrig.errors import DataError
from trainrig.objectives.policy import divergence
from trainrig.objectives.preference import REFERENCE_MODEL
from trainrig.posttrain.prompt_text import PromptEncoder, TextListener
from trainrig.posttrain.rewards.contract import Completion
from trainrig.posttrain.rewards.weighted import RewardScores, WeightedRewards, build_rewards
from trainrig.posttrain.rollouts.prompts import Prompt, PromptSet, read_prompt_set
from trainrig.posttrain.rollouts.run_file import ReinforcementLearning
from trainrig.randomness import RandomKey, words
from trainrig.tokens.batches import (
    ADVANTAGES,
    ENTRIES,
    EXAMPLES,
    FINISHED,
    FLAT,
    IDS,
    IGNORE,
    LIMIT_TOKENS,
    OLD,
    REFERENCE_TOKENS,
    REWARD_FAULTS,
    REWARD_PART,
    REWARDS,
    SAMPLED,
    TARGETS,
    TEMPERATURE,
    TOKENS,
    BatchMaker,
    MicroBatch,
)

if TYPE_CHECKING:  # torch takes seconds to import
    from torch import Tensor, nn

SOURCE = "rollouts"
PURPOSE = "rollouts"  # of the numbers that are drawn


@dataclass(frozen=True)
class _Group:
    """The completions of one prompt, with what they are worth."""

    prompt: Prompt
    completions: tuple[Completion, ...]
    log_probabilities: tuple[tuple[float, ...], ...]  # of each id, as sampled
    scores: RewardScores

    @property
    def flat(self) -> bool:
        """Whether all are worth the same."""
        return len(set(self.scores.totals)) == 1


class RolloutBatches(BatchMaker):
    """What a run's batches are made by."""

    def __init__(self, run: ReinforcementLearning, encoder: PromptEncoder, prompts: str) -> None:
        """`prompts`: the fingerprint of their files."""
        self.sources = (SOURCE,)
        self.updates = run.rollouts.updates
        self._run, self._encoder, self._fingerprint = run, encoder, prompts

    def identity(self) -> dict[str, Any]:
        """What is asked, how it is sampled, and what it is worth."""
        run = self._run
        return {
            "prompts": self._fingerprint,
            "asked": run.prompts.model_dump(mode="json", exclude={"paths"}),
            "rollouts": run.rollouts.model_dump(mode="json"),
            "rewards": [part.model_dump(mode="json") for part in run.rewards],
            "objective": run.objective.model_dump(mode="json"),
        }

    def micro_batches(self, number: int) -> int:
        """As many as the completions of a batch fill."""
        wanted = self._run.rollouts
        return wanted.prompts * wanted.samples // wanted.micro_batch

    def denominators(self, micro: MicroBatch) -> dict[str, int]:
        """Tokens of completions, completions, and the tokens that they may have."""
        return {
            TOKENS: int((micro.targets != IGNORE).sum()),
            EXAMPLES: len(micro.ids),
            LIMIT_TOKENS: int(micro.arrays[LIMIT_TOKENS].sum()),
        }

    def make(self, model: Any, others: Mapping[str, Any], number: int, index: int) -> MicroBatch:
        """See BatchMaker. Raises DataError if what was sampled is not what training reads."""
        wanted = self._run.rollouts
        each = wanted.micro_batch // wanted.samples  # prompts of a micro-batch
        first = number * wanted.prompts + index * each
        groups = self._draw(model, list(range(first, first + each)), 0)
        for draw in range(1, wanted.redraws + 1):
            flat = [place for place, group in enumerate(groups) if group.flat]
            if not flat:
                break
            again = self._draw(model, [first + place for place in flat], draw)
            for place, group in zip(flat, again, strict=True):
                groups[place] = group
        return self._batch(model, others.get(REFERENCE_MODEL), groups, first)

    def _draw(self, model: Any, places: Sequence[int], draw: int) -> list[_Group]:
        """The groups of the prompts at `places`, sampled together. `draw`: times that they were
        drawn before."""
        from trainrig.models.generate import Request, generate_scored
        from trainrig.models.sampling import Sampling

        wanted, encoder = self._run.rollouts, self._encoder.encoder
        prompts = [self._prompts.at(place, wanted.seed, draw) for place in places]
        key = RandomKey(wanted.seed, PURPOSE, draw)
        listeners, requests = [], []
        for place, prompt in zip(places, prompts, strict=True):
            samples = np.arange(wanted.samples) + place * wanted.samples
            for seed in words(key, np.zeros(1, dtype=np.int64), samples).tolist():
                sampling = Sampling(
                    temperature=wanted.temperature,
                    maximum_tokens=wanted.maximum_tokens,
                    stop=wanted.stop,
                    seed=seed & (2**63 - 1),
                )
                listeners.append(TextListener(encoder, wanted.stop, self._run.prompts.chat))
                requests.append(Request(prompt.ids, sampling, listeners[-1]))
        stop = set(encoder.special_tokens.stop_ids)
        said = generate_scored(model, requests, stop, encoder.vocabulary_size)
        groups = []
        for place, prompt in enumerate(prompts):
            mine = slice(place * wanted.samples, (place + 1) * wanted.samples)
            completions = tuple(
                Completion(
                    prompt=prompt.text,
                    text=listener.finish(),
                    ids=_whole(one.generation.ids, one.generation.stop_id),
                    finished=one.generation.stopped in ("end", "stop"),
                    row=prompt.row,
                )
                for one, listener in zip(said[mine], listeners[mine], strict=True)
            )
            given = tuple(one.log_probabilities for one in said[mine])
            groups.append((prompt, completions, given))
        scores = self._rewards.score([each for _, of, _ in groups for each in of])
        return [
            _Group(*group, _cut(scores, place * wanted.samples, (place + 1) * wanted.samples))
            for place, group in enumerate(groups)
        ]

    def _batch(
        self, model: "nn.Module", reference: "nn.Module | None", groups: list[_Group], first: int
    ) -> MicroBatch:
        from torch import from_numpy

        run, samples = self._run, self._run.rollouts.samples
        rows = [
            (group.prompt, completion, given)
            for group in groups
            for completion, given in zip(group.completions, group.log_probabilities, strict=True)
        ]
        width = max(len(prompt.ids) + len(completion.ids) for prompt, completion, _ in rows) - 1
        padding = self._encoder.encoder.special_tokens.padding
        ids_BT = np.full((len(rows), width), padding, dtype=np.int64)
        targets_BT = np.full_like(ids_BT, IGNORE)
        sampled_BT = np.zeros(ids_BT.shape, dtype=np.float32)
        for row, (prompt, completion, given) in enumerate(rows):
            whole = (*prompt.ids, *completion.ids)
            begin, end = len(prompt.ids) - 1, len(whole) - 1
            ids_BT[row, :end] = whole[:-1]
            targets_BT[row, begin:end] = completion.ids
            sampled_BT[row, begin:end] = given
        device = next(model.parameters()).device
        read = (from_numpy(ids_BT).to(device), from_numpy(targets_BT).to(device))
        old_BT = self._read(model, *read)
        self._check_gap(old_BT, sampled_BT, targets_BT != IGNORE)
        arrays: dict[str, NDArray[Any]] = {IDS: ids_BT, TARGETS: targets_BT}
        arrays |= {OLD: old_BT, SAMPLED: sampled_BT}
        rewards_GS = np.array([group.scores.totals for group in groups], dtype=np.float64)
        held = run.objective.reference
        if held and reference is not None:
            arrays[REFERENCE_TOKENS] = self._read(reference, *read)
            if held.place == "reward":
                away_BT = divergence(held.estimator, old_BT - arrays[REFERENCE_TOKENS])
                away_GS = (away_BT * (targets_BT != IGNORE)).sum(1).reshape(-1, samples)
                rewards_GS = rewards_GS - held.weight * away_GS
        advantages_GS = run.objective.advantages(rewards_GS)
        names = groups[0].scores.parts
        faults = [sum(group.scores.faults.values()) / len(rows) for group in groups]
        arrays |= {
            REWARDS: _flat(rewards_GS),
            ADVANTAGES: _flat(advantages_GS),
            FLAT: np.repeat(np.array([group.flat for group in groups], dtype=np.int64), samples),
            REWARD_FAULTS: np.repeat(np.array(faults, dtype=np.float32), samples),
            FINISHED: np.array([completion.finished for _, completion, _ in rows], dtype=np.int64),
            LIMIT_TOKENS: np.full(len(rows), run.rollouts.maximum_tokens, dtype=np.int64),
            TEMPERATURE: np.full(len(rows), run.rollouts.temperature, dtype=np.float32),
            ENTRIES: np.full(len(rows), self._encoder.encoder.vocabulary_size, dtype=np.int64),
        }
        for name in names:
            of_part = [score for group in groups for score in group.scores.parts[name]]
            arrays[REWARD_PART + name] = np.array(of_part, dtype=np.float32)
        numbers = np.array([prompt.number for prompt, _, _ in rows])
        places = np.arange(len(rows))
        return MicroBatch(
            arrays,
            samples=first * samples + places,
            sources=np.zeros(len(rows), dtype=np.int64),
            pieces=np.stack([places, np.zeros_like(places), numbers], axis=1),
        )

    def _read(
        self, model: "nn.Module", ids_BT: "Tensor", targets_BT: "Tensor"
    ) -> NDArray[np.float32]:
        """[B, T] log-probabilities as training reads them."""
        from trainrig.objectives.token_log_probabilities import read_tokens

        entries = self._encoder.encoder.vocabulary_size
        temperature = float(np.float32(self._run.rollouts.temperature))
        read = read_tokens(model, ids_BT, targets_BT, temperature, entries)
        found: NDArray[np.float32] = read.log_probabilities_BT.cpu().numpy()
        return found

    def _check_gap(
        self,
        old_BT: NDArray[np.float32],
        sampled_BT: NDArray[np.float32],
        mask_BT: NDArray[np.bool_],
    ) -> None:
        gap = float(np.abs(old_BT - sampled_BT)[mask_BT].mean())
        most = self._run.rollouts.largest_gap
        if not gap <= most:
            raise DataError(
                f"rollouts: log-probabilities as sampled and as training reads them differ by "
                f"{gap:.3g} nats a token, more than largest_gap = {most}: training would learn of "
                "another model than it samples from. Train in a finer precision, or raise "
                "rollouts.largest_gap if that much is meant to be"
            )

    @functools.cached_property
    def _prompts(self) -> PromptSet:
        columns = tuple(name for part in self._run.rewards for name in part.columns)
        longest = self._run.rollouts.prompt_tokens
        return read_prompt_set(self._run.prompts, self._encoder, longest, columns)

    @functools.cached_property
    def _rewards(self) -> WeightedRewards:
        return build_rewards(self._run.rewards)


def open_rollouts(
    run: ReinforcementLearning, encoder: PromptEncoder, prompts: str
) -> RolloutBatches:
    """The batches of `run`; `prompts`: the fingerprint of their files."""
    return RolloutBatches(run, encoder, prompts)


def _whole(ids: tuple[int, ...], stop_id: int | None) -> tuple[int, ...]:
    """With the id that ended it: it was drawn, and is trained on."""
    return ids if stop_id is None else (*ids, stop_id)


def _cut(scores: RewardScores, begin: int, end: int) -> RewardScores:
    """Those of some completions; all have the faults of a whole, shared out evenly."""
    parts = {name: each[begin:end] for name, each in scores.parts.items()}
    return RewardScores(scores.totals[begin:end], parts, scores.faults)


def _flat(values_GS: NDArray[np.float64]) -> NDArray[np.float32]:
    return values_GS.reshape(-1).astype(np.float32)
