"""Batches of reinforcement learning: sampled completions with their advantages.

The completions of a micro-batch are sampled together, passed once through the model as in training,
and scored. The prompts and all random numbers follow from the seed, the number of the batch and the
number of the micro-batch. So a micro-batch is a function of these and the weights: every worker
makes the same one, also when it is made again after a failure.

- A *group* is the completions of one prompt. It is *flat* if all have the same total reward, which
  gives no gradient where advantages compare the completions of a group.
- A *wave* is one round of sampling for a batch, with as many prompts as a batch has. With
  `rollouts.waves` above 1, a batch is chosen from the groups of several waves.
- `rollouts.lag` is the number of batches that sampling runs ahead. With a lag, the weights that
  sampled a batch are older than those that it updates.

A token has up to three log-probabilities: SAMPLED as the sampler reported it, BEHAVIOUR under the
same weights but computed as in training (only with a lag), and OLD under the weights that the batch
updates.

Shapes: B completions of a micro-batch, T positions, G prompts, S completions of each.
"""

import functools
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trainrig.config import extract_identity
from trainrig.errors import DataError
from trainrig.objectives.on_policy_distillation import TEACHER_MODEL
from trainrig.objectives.policy.policy_gradient import Floats
from trainrig.objectives.policy.ppo import CRITIC_MODEL, read_values
from trainrig.objectives.preference import REFERENCE_MODEL
from trainrig.posttrain.prompt_files import Prompt, PromptSet, read_prompt_set
from trainrig.posttrain.prompt_text import PromptEncoder
from trainrig.posttrain.rewards.weighted_rewards import RewardScores, WeightedRewards, build_rewards
from trainrig.rl.masked_prompts import PromptMasks
from trainrig.rl.reinforcement_run_file import ReinforcementLearning
from trainrig.rl.rollout_generation import Transcript, TranscriptSampler, VllmSampler
from trainrig.rl.rollout_maker import NO_ARRAYS, PROMPTS, TOTALS, Arrays, RolloutMaker, fill_batch
from trainrig.tokens import batches
from trainrig.tokens.rows.masked_documents import MaskedDocuments
from trainrig.train.training_job import OnlineBatches, OnlineState, TrainingJob

if TYPE_CHECKING:
    from torch import Tensor, nn

    from trainrig.models.decoder import Decoder
    from trainrig.models.generation import Request, ScoredGeneration


SOURCE = "rollouts"


@dataclass(frozen=True)
class CompletionGroup:
    """Completions of one prompt, with their scores."""

    transcripts: tuple[Transcript, ...]
    scores: RewardScores

    @property
    def flat(self) -> bool:
        """True if there are several completions and all have the same total reward."""
        return len(self.scores.totals) > 1 and len(set(self.scores.totals)) == 1


class RolloutBatches(RolloutMaker):
    """Maker of the batches of a reinforcement learning run."""

    def __init__(
        self,
        run: ReinforcementLearning,
        encoder: PromptEncoder,
        prompts: str,
        masked: MaskedDocuments | None = None,
    ) -> None:
        """Store the settings of `run`.

        `prompts` is the fingerprint of the prompt files; `masked` are prompts that are not trained
        on.
        """
        self._masked = masked
        self.sources = (SOURCE,)
        self.updates = run.rollouts.updates
        self.lag = run.rollouts.lag
        self.waves = run.rollouts.waves
        self._run = run
        self._encoder = encoder
        self._fingerprint = prompts
        vllm = run.rollouts.vllm
        files = encoder.encoder.files
        self._vllm = VllmSampler(files, vllm.memory) if vllm else None

    def open(self, job: TrainingJob, attempt: int, state: OnlineState) -> OnlineBatches:
        """Return the batches of one rank; see `OnlineSource`."""
        # Imported here, as it loads torch, which takes seconds: drivers make this object as well.
        from trainrig.rl.online_batches import StoredRollouts

        return StoredRollouts(self, job, attempt, state)

    def identity(self) -> dict[str, Any]:
        """Return all settings and fingerprints that the batches depend on, besides the weights."""
        run = self._run
        return {
            "prompts": self._fingerprint,
            # The key "asked" (how prompts are read) cannot be renamed: it is stored in runs.
            "asked": run.prompts.model_dump(mode="json", exclude={"paths"}),
            "rollouts": extract_identity(run.rollouts),
            "rewards": [extract_identity(part) for part in run.rewards],
            **({"environment": extract_identity(run.environment)} if run.environment else {}),
            "objective": run.objective.model_dump(mode="json"),
            **({"critic": extract_identity(run.settled_critic)} if run.settled_critic else {}),
        }

    def data_before(self, step: int) -> dict[str, Any]:
        """Return the description of the data before `step`, with the masked prompts in it."""
        used = self._masks.describe(step) if self._masks else {}
        return super().data_before(step) | used

    def micro_batches(self, number: int) -> int:
        """Return the number of micro-batches in a batch."""
        wanted = self._run.rollouts
        return wanted.prompts * wanted.samples // wanted.micro_batch

    def denominators(self, micro: batches.MicroBatch) -> dict[str, int]:
        """Return the numbers of trained tokens and of completions, and the sum of token limits."""
        return {
            batches.TOKENS: int((micro.targets != batches.IGNORE).sum()),
            batches.EXAMPLES: len(micro.ids),
            batches.LIMIT_TOKENS: int(micro.arrays[batches.LIMIT_TOKENS].sum()),
        }

    def sample(self, model: Any, number: int, index: int, wave_input: Arrays = NO_ARRAYS) -> Arrays:
        """Sample and score micro-batch `index` of batch `number` (of wave `number` with waves).

        A prompt whose group is flat is replaced up to `redraws` times. `wave_input` is not used,
        because completions start from their prompts alone (see `RolloutMaker.sample`).

        With a lag, raises DataError if the log-probabilities of sampling and of training differ by
        more than `largest_gap`.
        """
        wanted = self._run.rollouts
        count = wanted.micro_batch // wanted.samples  # prompts of a micro-batch
        first = number * wanted.prompts + index * count
        groups = self._draw(model, list(range(first, first + count)), 0)
        for draw in range(1, wanted.redraws + 1):
            flat = [place for place, group in enumerate(groups) if group.flat]
            if not flat:
                break
            again = self._draw(model, [first + place for place in flat], draw)
            for place, group in zip(flat, again, strict=True):
                groups[place] = group
        arrays = self._build_arrays(groups)
        if self.lag:
            arrays[batches.BEHAVIOUR] = self._read_log_probabilities(
                model, *move_to_device(model, arrays)
            )
            self._check_gap(arrays[batches.BEHAVIOUR], arrays)
        return arrays

    def take_weights(self) -> None:
        """Make vLLM, if it samples, copy the model's weights before it samples again."""
        if self._vllm:
            self._vllm.take_weights()

    def fill(self, drawn: Sequence[Sequence[Arrays]]) -> Sequence[Arrays] | None:
        """Choose the groups of a batch from the waves in `drawn`; None requests another wave."""
        padding = self._encoder.encoder.special_tokens.padding
        return fill_batch(drawn, self._run.rollouts, padding)

    def _draw(self, model: Any, places: Sequence[int], draw: int) -> list[CompletionGroup]:
        """Sample and score one group for each of `places` in the run's order of prompts.

        `draw` is the number of times that these places were drawn before.
        """
        prompts = {
            place: self._prompts.find(place, self._run.rollouts.seed, draw) for place in places
        }
        masks = self._masks
        hidden = {p for p, prompt in prompts.items() if masks and prompt.number in masks.numbers}
        drawn = [(place, prompt) for place, prompt in prompts.items() if place not in hidden]
        groups = iter(self._sample_groups(model, drawn, draw) if drawn else ())
        return [
            self._mask_group(prompts[place]) if place in hidden else next(groups)
            for place in places
        ]

    def _mask_group(self, prompt: Prompt) -> CompletionGroup:
        """Return the group of a masked prompt: a filler without a target, and equal rewards."""
        assert self._masks is not None
        filler = self._masks.filler
        hidden = replace(prompt, text="", ids=(filler,), row={}, chat=None)
        samples = self._run.rollouts.samples
        transcripts = tuple(
            Transcript(hidden, 0, ids=[filler], drawn=[False], log_probabilities=[0.0])
            for _ in range(samples)
        )
        parts = {part.name: (0.0,) * samples for part in self._run.rewards}
        return CompletionGroup(transcripts, RewardScores((0.0,) * samples, parts, {}))

    def _sample_groups(
        self, model: Any, placed_prompts: Sequence[tuple[int, Prompt]], draw: int
    ) -> list[CompletionGroup]:
        """Sample and score one group for each of `placed_prompts`, (place, prompt)."""
        samples = self._run.rollouts.samples
        transcripts = self._sampler.sample(model, placed_prompts, draw)
        completions = [transcript.build_completion() for transcript in transcripts]
        environment = self._run.environment
        environment_scores = (
            [(environment, [transcript.score for transcript in transcripts])] if environment else []
        )
        rows = [transcript.prompt.number for transcript in transcripts]
        scores = self._rewards.score(completions, environment_scores, rows)
        return [
            CompletionGroup(
                tuple(transcripts[begin : begin + samples]), _cut(scores, begin, begin + samples)
            )
            for begin in range(0, len(transcripts), samples)
        ]

    def _build_arrays(self, groups: Sequence[CompletionGroup]) -> dict[str, NDArray[Any]]:
        """Return the tokens and scores of `groups` as the arrays that `complete` takes."""
        run = self._run
        samples = self._run.rollouts.samples
        rows = [transcript for group in groups for transcript in group.transcripts]
        width = max(len(row.prompt.ids) + len(row.ids) for row in rows) - 1
        padding = self._encoder.encoder.special_tokens.padding
        ids_BT = np.full((len(rows), width), padding, dtype=np.int64)
        targets_BT = np.full_like(ids_BT, batches.IGNORE)
        sampled_BT = np.zeros(ids_BT.shape, dtype=np.float32)
        for index, transcript in enumerate(rows):
            whole = (*transcript.prompt.ids, *transcript.ids)
            begin = len(transcript.prompt.ids) - 1
            end = len(whole) - 1
            ids_BT[index, :end] = whole[:-1]
            # Tokens of an environment are input of the model and get no loss.
            targets_BT[index, begin:end] = np.where(
                transcript.drawn, transcript.ids, batches.IGNORE
            )
            sampled_BT[index, begin:end] = transcript.log_probabilities
        faults = [sum(group.scores.faults.values()) / len(rows) for group in groups]
        arrays: dict[str, NDArray[Any]] = {
            batches.IDS: ids_BT,
            batches.TARGETS: targets_BT,
            batches.SAMPLED: sampled_BT,
            batches.FLAT: np.repeat(
                np.array([group.flat for group in groups], dtype=np.int64), samples
            ),
            **_compare_completions(groups),
            batches.REWARD_FAULTS: np.repeat(np.array(faults, dtype=np.float32), samples),
            batches.FINISHED: np.array([row.finished for row in rows], dtype=np.int64),
            batches.LIMIT_TOKENS: np.full(len(rows), run.rollouts.maximum_tokens, dtype=np.int64),
            batches.TEMPERATURE: np.full(len(rows), run.rollouts.temperature, dtype=np.float32),
            batches.ENTRIES: np.full(
                len(rows), self._encoder.encoder.vocabulary_size, dtype=np.int64
            ),
            TOTALS: np.array([group.scores.totals for group in groups], dtype=np.float64),
            PROMPTS: np.array([row.prompt.number for row in rows]),
        }
        if run.environment:
            arrays[batches.TURNS] = np.array([row.turns for row in rows], dtype=np.int64)
        for name in groups[0].scores.parts:
            part_scores = [score for group in groups for score in group.scores.parts[name]]
            arrays[batches.REWARD_PART + name] = np.array(part_scores, dtype=np.float32)
        return arrays

    def complete(
        self, model: Any, others: Mapping[str, Any], number: int, index: int, sampled: Arrays
    ) -> batches.MicroBatch:
        """Add the log-probabilities of training and the advantages to a sampled micro-batch.

        `others` are the reference, teacher and critic models that the objective uses, by name.
        Without a lag, raises DataError if the log-probabilities of sampling and of training differ
        by more than `largest_gap`.
        """
        wanted = self._run.rollouts
        arrays = dict(sampled)
        rewards_GS = arrays.pop(TOTALS)
        numbers_B = arrays.pop(PROMPTS)
        read = move_to_device(model, arrays)
        arrays[batches.OLD] = self._read_log_probabilities(model, *read)
        self._weigh_or_check(arrays)
        arrays |= self._assign_credit(others, rewards_GS, arrays, read)
        places = np.arange(len(numbers_B))
        first = number * wanted.prompts * wanted.samples + index * wanted.micro_batch
        return batches.MicroBatch(
            arrays,
            samples=first + places,
            sources=np.zeros(len(places), dtype=np.int64),
            # one piece a row: (row, position 0, number of the prompt)
            pieces=np.stack([places, np.zeros_like(places), numbers_B], axis=1),
        )

    def _weigh_or_check(self, arrays: dict[str, NDArray[Any]]) -> None:
        """Add importance weights to `arrays` if there is a lag.

        Without a lag, raises DataError if the log-probabilities of sampling and of training differ
        by more than `largest_gap`.
        """
        if self.lag:
            self._add_importance(arrays)
        else:
            self._check_gap(arrays[batches.OLD], arrays)

    def _add_importance(self, arrays: dict[str, NDArray[Any]]) -> None:
        change_BT = arrays[batches.OLD] - arrays[batches.BEHAVIOUR]
        mask_BT = arrays[batches.TARGETS] != batches.IGNORE
        limit = np.full(len(mask_BT), self._run.rollouts.importance_limit, dtype=np.float32)
        arrays[batches.IMPORTANCE_LIMIT] = limit
        weights_BT = self._run.objective.compute_importance(change_BT, mask_BT, float(limit[0]))
        arrays[batches.IMPORTANCE] = weights_BT

    def _assign_credit(
        self,
        others: Mapping[str, Any],
        rewards_GS: Floats,
        arrays: Mapping[str, NDArray[Any]],
        read: "tuple[Tensor, Tensor]",
    ) -> dict[str, NDArray[Any]]:
        """Return the objective's arrays, such as advantages, for the completions of G prompts.

        `read` holds the ids and the targets of the completions, on the device of the model.
        """
        mask_BT = arrays[batches.TARGETS] != batches.IGNORE
        objective = self._run.objective
        credited: dict[str, NDArray[Any]] = {}
        penalties_BT: Floats | None = None
        values_BT: Floats | None = None
        if reference := objective.reference:
            credited[batches.REFERENCE_TOKENS] = self._read_log_probabilities(
                others[REFERENCE_MODEL], *read
            )
            # `carried` has the values that the objective carries from batch to batch
            weight = self.carried.get(batches.DIVERGENCE_WEIGHT, reference.weight)
            if reference.place == "reward":
                away_BT = (arrays[batches.OLD] - credited[batches.REFERENCE_TOKENS]).astype(
                    np.float64
                )
                penalties_BT = weight * reference.estimate(away_BT) * mask_BT
            if reference.adaptive:
                credited[batches.DIVERGENCE_WEIGHT] = np.full(
                    len(mask_BT), weight, dtype=np.float32
                )
        if objective.credits_teacher:
            credited[batches.TEACHER_TOKENS] = self._read_log_probabilities(
                others[TEACHER_MODEL], *read
            )
            away_BT = (arrays[batches.OLD] - credited[batches.TEACHER_TOKENS]).astype(np.float64)
            penalties_BT = away_BT * mask_BT
        if CRITIC_MODEL in others:
            values, _ = read_values(others[CRITIC_MODEL], *read)
            values_BT = values.double().cpu().numpy()
        return credited | objective.credit(rewards_GS, mask_BT, penalties_BT, values_BT)

    def _read_log_probabilities(
        self, model: "nn.Module", ids_BT: "Tensor", targets_BT: "Tensor"
    ) -> NDArray[np.float32]:
        """Return the [B, T] log-probabilities of the targets, computed as in training."""
        from trainrig.objectives.log_probabilities import read_tokens

        entries = self._encoder.encoder.vocabulary_size
        temperature = float(np.float32(self._run.rollouts.temperature))
        scored = read_tokens(model, ids_BT, targets_BT, temperature, entries)
        log_probabilities_BT: NDArray[np.float32] = scored.log_probabilities_BT.cpu().numpy()
        return log_probabilities_BT

    def _check_gap(self, read_BT: NDArray[np.float32], arrays: Arrays) -> None:
        mask_BT = arrays[batches.TARGETS] != batches.IGNORE
        if self._masks and not mask_BT.any():
            return
        gap = float(np.abs(read_BT - arrays[batches.SAMPLED])[mask_BT].mean())
        most = self._run.rollouts.largest_gap
        if not gap <= most:
            raise DataError(
                "rollouts: log-probabilities from sampling and from training differ by "
                f"{gap:.3g} nats a token, more than rollouts.largest_gap = {most}, so "
                "training would optimise another model than the one that samples. Train in a "
                "more precise number format, or raise rollouts.largest_gap if this difference "
                "is expected"
            )

    @functools.cached_property
    def _prompts(self) -> PromptSet:
        columns = tuple(name for part in self._run.rewards for name in part.columns)
        longest = self._run.rollouts.prompt_tokens
        return read_prompt_set(self._run.prompts, self._encoder, longest, columns)

    @functools.cached_property
    def _masks(self) -> PromptMasks | None:
        return PromptMasks(self._run, self._prompts, self._masked) if self._masked else None

    @functools.cached_property
    def _rewards(self) -> WeightedRewards:
        return open_rewards(self._run)

    @functools.cached_property
    def _sampler(self) -> TranscriptSampler:
        environment = self._run.environment.open() if self._run.environment else None
        generate = self._vllm.generate if self._vllm else _generate
        return TranscriptSampler(self._run, self._encoder, environment, generate)


def _generate(
    model: "Decoder", requests: "Sequence[Request]", stop: Collection[int], entries: int
) -> "list[ScoredGeneration]":
    from trainrig.models.generation import generate_scored

    return generate_scored(model, requests, stop, entries)


def move_to_device(model: "nn.Module", arrays: Arrays) -> "tuple[Tensor, Tensor]":
    """Return the ids and targets of `arrays` as tensors on the device of `model`."""
    from torch import from_numpy

    device = next(model.parameters()).device
    return from_numpy(arrays[batches.IDS]).to(device), from_numpy(arrays[batches.TARGETS]).to(
        device
    )


def open_rewards(run: ReinforcementLearning) -> WeightedRewards:
    """Open the rewards of `run` and return their weighted sum.

    The sum is empty for a run that has a teacher and neither rewards nor an environment. Raises
    ConfigError if a reward cannot be opened.
    """
    further = [run.environment] if run.environment else []
    if run.teacher and not (run.rewards or further):
        return WeightedRewards(())
    return build_rewards(run.rewards, further)


def _compare_completions(groups: Sequence[CompletionGroup]) -> dict[str, NDArray[Any]]:
    """Return the arrays `DISTINCT` and `SHARED` of the completions in `groups`, by their tokens."""
    counts = [Counter(tuple(said.ids) for said in group.transcripts) for group in groups]
    everywhere = sum(counts, start=Counter[tuple[int, ...]]())
    samples = len(groups[0].transcripts)
    others = max(1, (len(groups) - 1) * samples)  # completions of other prompts
    distinct = [len(count) / samples for count in counts]
    shared = [
        (everywhere[tuple(said.ids)] - count[tuple(said.ids)]) / others
        for group, count in zip(groups, counts, strict=True)
        for said in group.transcripts
    ]
    return {
        batches.DISTINCT: np.repeat(np.array(distinct, dtype=np.float32), samples),
        batches.SHARED: np.array(shared, dtype=np.float32),
    }


def _cut(scores: RewardScores, begin: int, end: int) -> RewardScores:
    """Return the scores of completions `begin` to `end`, and the fault counts of all completions.

    Faults are not counted by completion, so `_build_arrays` divides them by the number of all.
    """
    parts = {name: values[begin:end] for name, values in scores.parts.items()}
    return RewardScores(scores.totals[begin:end], parts, scores.faults)
