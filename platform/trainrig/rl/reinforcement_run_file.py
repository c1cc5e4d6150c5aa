"""Run file of reinforcement learning (`trainrig rl`)."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, Self

from pydantic import model_validator

from trainrig.config import NOT_IDENTITY, OUTPUT, Field, Settings
from trainrig.config.resource_request import ResourceRequest
from trainrig.models.architecture.lora_settings import LoRA
from trainrig.objectives.objective_kinds import Policy
from trainrig.objectives.policy.group_relative import GRPO
from trainrig.optim import AdamW, Optimizer
from trainrig.posttrain.prompt_files import PromptFiles
from trainrig.posttrain.rewards import RewardSettings
from trainrig.rl.environments import Calculator, PythonEnvironment
from trainrig.tokens.batches import check_divides
from trainrig.train.run_file.run_files import TrainingRunFile
from trainrig.train.run_file.training_settings import Training
from trainrig.train.run_file.worker_settings import ExtraWorkers, Workers, parse_bounds
from trainrig.train.spikes import Spikes

EnvironmentSettings = Annotated[Calculator | PythonEnvironment, Field(discriminator="kind")]


class VllmSettings(Settings):
    """Sampling with vLLM, on the same GPU as the model that recomputes log-probabilities."""

    memory: float = Field(default=0.5, gt=0, le=1)  # share of the GPU's memory for vLLM


class PartialRollouts(Settings):
    """Partial rollouts: long completions are interrupted, and later batches continue them.

    See Kimi 2025 (arXiv:2501.12599, section 2.6).
    """

    # Largest number of tokens that one wave adds to each completion.
    budget: int = Field(ge=1)
    # Largest age, in batches, of the weights that sampled a token when the token is trained on.
    # A batch waits for groups that reach this age; no completion is cut or dropped.
    staleness: int = Field(default=4, ge=1)


class Rollouts(Settings):
    """Settings for sampling completions and for the size of batches."""

    prompts: int = Field(ge=1)  # prompts in one batch, over all workers
    samples: int = Field(default=8, ge=1)  # completions per prompt, which form a group
    # Completions that are sampled together and trained on in one pass. It must be a multiple of
    # `samples`. More completions need more memory.
    micro_batch: int = Field(ge=1)
    # Consecutive optimizer steps on each batch. Above 1, all but the first are off-policy, within
    # the objective's clipping of ratios.
    updates: int = Field(default=1, ge=1)
    prompt_tokens: int = Field(default=512, ge=1)  # longest prompt, in tokens; longer are skipped
    maximum_tokens: int = Field(default=256, ge=1)  # longest completion, in tokens
    temperature: float = Field(default=1.0, gt=0, allow_inf_nan=False)  # sampling temperature
    # Texts that end a completion at their first occurrence; rewards do not see them.
    stop: tuple[str, ...] = ()
    # Largest number of times that a prompt is replaced because all its completions have the same
    # reward, which gives no gradient (DAPO's dynamic sampling). After that the prompt is kept.
    redraws: int = Field(default=0, ge=0)
    # Largest number of waves, each with `prompts` new prompts, that are sampled for a batch. Waves
    # stop once `prompts` groups have unequal rewards, and the first such groups form the batch
    # (DAPO's dynamic sampling by whole waves). After the last wave, groups with equal rewards fill
    # the batch. 1: train on all groups of one wave.
    waves: int = Field(default=1, ge=1)
    # Largest mean difference, in nats per token of a micro-batch, between the log-probabilities of
    # sampling and of training with the same weights. Above it the run fails, because it would train
    # another model than it samples from.
    largest_gap: float = Field(default=0.02, gt=0, allow_inf_nan=False)
    seed: int = 0  # random seed of the prompt order and of sampling
    # Ray actors that sample in addition to the workers: a number, or [fewest, most] to use the
    # machines that are available. 0: the workers sample between steps. The samples do not depend on
    # the number of actors.
    actors: ExtraWorkers = 0
    # Number of batches that sampling runs ahead, so that actors sample while workers train. Batch n
    # is sampled from the weights before batch n - lag. 0: on-policy.
    lag: int = Field(default=0, ge=0)
    # Partial rollouts: interrupt long completions and continue them together with later prompts. A
    # group is trained on once all its completions have ended; None: sample each batch to the end.
    partial: PartialRollouts | None = None
    # Largest importance weight of a token, with a lag or with partial rollouts. The importance
    # weight is the probability of the token under the current weights, divided by its probability
    # under the weights that sampled it (Espeholt et al. 2018, arXiv:1802.01561, section 4.1).
    importance_limit: float = Field(default=2.0, ge=1, allow_inf_nan=False)
    # Sampling with vLLM, which must be installed on the actors' machines; None: trainrig's own
    # generation. Samples of vLLM depend on the other requests of a batch, so a run cannot be
    # repeated exactly, and training.deterministic must be false.
    vllm: VllmSettings | None = None

    @property
    def drops_flat_by(self) -> str:
        """Key that replaces groups with equal rewards, `redraws` or `waves`; empty if none does."""
        return "redraws" if self.redraws else "waves" if self.waves > 1 else ""

    @model_validator(mode="after")
    def _check_group_sizes(self) -> Self:
        if self.micro_batch % self.samples:
            above = self.micro_batch + self.samples - self.micro_batch % self.samples
            raise ValueError(
                f"micro_batch ({self.micro_batch} completions) must be a multiple of samples "
                f"({self.samples}), so that groups stay whole; the nearest above: {above}"
            )
        check_divides(self.prompts * self.samples, self.micro_batch)
        return self

    @model_validator(mode="after")
    def _check_waves(self) -> Self:
        if self.waves > 1 and self.redraws:
            raise ValueError(
                "waves and redraws: both replace prompts whose completions have equal "
                "rewards; leave one of them out"
            )
        if self.waves > 1 and self.lag:
            raise ValueError(
                "waves and lag: with a lag, a batch is sampled before the waves of earlier "
                "batches are known; set lag = 0, or use redraws instead of waves"
            )
        return self

    @model_validator(mode="after")
    def _check_partial_groups(self) -> Self:
        for name, normal in (("waves", 1), ("redraws", 0), ("lag", 0)):
            if self.partial and getattr(self, name) != normal:
                raise ValueError(
                    f"partial and {name}: with [rollouts.partial], the groups of a batch "
                    f"depend on unfinished groups of earlier batches; leave out {name} or "
                    "[rollouts.partial]"
                )
        return self


class Critic(Settings):
    """Critic of PPO: the model that predicts the reward still to come at each token."""

    # Initial model, such as a reward model: a run folder or checkpoint; None: the initial policy,
    # with a randomly initialised value head.
    checkpoint: Annotated[str | None, NOT_IDENTITY] = None
    # Optimizer of the critic, with its own peak rate.
    optimizer: Optimizer = AdamW(lr=1e-5, weight_decay=0.0)
    # Largest norm of the critic's gradient; larger gradients are scaled down to it.
    clip_norm: float = Field(default=1.0, gt=0)


class PolicyTraining(Training):
    """Training settings of a policy: `[training]` with another default for spikes."""

    # Handling of loss spikes; None: react to losses that are not finite only. The loss of a policy
    # stays near 0 whether or not it improves, so spikes of it say little.
    spikes: Spikes | None = None


class ReinforcementLearning(TrainingRunFile):
    """Run file of `trainrig rl`: trains a checkpoint on rewards for its answers."""

    verb: ClassVar[str] = "rl"
    estimate: ClassVar[str] = "trainrig.estimate.rollout_check:estimate_rollouts"
    output_format: ClassVar[int] = 2  # 2: a batch's identity includes the objective's settings

    stage: Literal["rl"] = "rl"
    # Initial model: a run folder, a checkpoint, or a Hugging Face folder.
    checkpoint: Annotated[str, NOT_IDENTITY]
    prompts: PromptFiles  # files with the prompts
    output: Annotated[str, OUTPUT]  # run folder to write, on disk or in a bucket
    # Worker processes: a number, or [fewest, most] to use the machines that are available.
    workers: Workers = 1
    # File of prompts that are not trained on, which `trainrig forget` wrote; None: all prompts are.
    # Their places stay, so the order of all others does not change.
    masked_documents: Annotated[str | None, NOT_IDENTITY] = None
    rollouts: Rollouts  # sampling of completions
    # Rewards that score the completions; the total is their weighted sum. It may be empty if there
    # is an environment or a teacher.
    rewards: tuple[RewardSettings, ...] = ()
    # Environment that answers the model within a completion; None: the model writes alone.
    environment: EnvironmentSettings | None = None
    # Objective, which training minimises.
    objective: Annotated[Policy, Field(discriminator="kind")] = GRPO()
    critic: Critic | None = None  # critic of PPO; None: a critic with the default settings
    # Frozen teacher of OnPolicyDistillation, with the same tokenizer: a run folder or checkpoint;
    # None: no teacher, for all other objectives.
    teacher: Annotated[str | None, NOT_IDENTITY] = None
    # Low-rank adapters to train while the model is frozen; None: train the model itself.
    lora: LoRA | None = None
    training: PolicyTraining  # length and settings of training

    @property
    def settled_critic(self) -> Critic | None:
        """The critic's settings if the objective needs one, otherwise None."""
        return (self.critic or Critic()) if self.objective.needs_critic else None

    def request_resources(self, there_are_gpus: bool) -> ResourceRequest:
        """Return one device for each worker and actor: a GPU if there are any, otherwise a core."""
        both = [parse_bounds(count) for count in (self.workers, self.rollouts.actors)]
        total = sum(bounds.least for bounds in both), sum(bounds.most for bounds in both)
        return ResourceRequest.on_devices(total, there_are_gpus)

    @model_validator(mode="after")
    def _check_what_skips_no_data(self) -> Self:
        rollouts = self.rollouts
        reasons = {
            "lag": "skipping data would need weights from before the skip to sample with, which "
            "are not kept",
            "waves": "the next batch would draw the skipped prompts again, because waves continue "
            "after the last one",
            "partial": "skipping data would drop unfinished rollouts",
        }
        chosen = {"lag": rollouts.lag, "waves": rollouts.waves > 1, "partial": rollouts.partial}
        for key, reason in reasons.items():
            for name in ("spikes", "skip_data"):
                if chosen[key] and getattr(self.training, name):
                    raise ValueError(
                        f"rollouts.{key} and training.{name}: {reason}; leave one of them out"
                    )
        if rollouts.partial and self.environment:
            raise ValueError(
                "rollouts.partial and [environment]: the state of an environment is not kept "
                "from batch to batch; leave one of them out"
            )
        return self

    @model_validator(mode="after")
    def _check_groups(self) -> Self:
        kind = self.objective.kind
        if self.critic and not self.objective.needs_critic:
            raise ValueError(
                f"critic: objective {kind} has none; leave it out, or set objective.kind = 'PPO'"
            )
        if self.rollouts.samples == 1 and self.objective.compares_completions:
            raise ValueError(
                f"rollouts.samples: objective {kind} compares the completions of a prompt "
                "with each other; set 2 or more"
            )
        if self.rollouts.samples == 1 and (name := self.rollouts.drops_flat_by):
            raise ValueError(
                f"rollouts.{name}: a single completion has no other rewards to be equal to; "
                "leave it out, or set rollouts.samples to 2 or more"
            )
        return self

    @model_validator(mode="after")
    def _check_teacher(self) -> Self:
        kind = self.objective.kind
        taught = self.objective.needs_teacher
        if self.teacher and not taught:
            raise ValueError(
                f"teacher: objective {kind} uses no teacher; leave it out, or "
                "set objective.kind = 'OnPolicyDistillation'"
            )
        if taught and not self.teacher:
            raise ValueError(f"teacher: objective {kind} needs one; name a checkpoint")
        if taught and (name := self.rollouts.drops_flat_by):
            raise ValueError(
                f"rollouts.{name}: the student learns from the teacher also where rewards are "
                f"equal; leave it out with objective {kind}"
            )
        return self

    @model_validator(mode="after")
    def _check_vllm(self) -> Self:
        if self.rollouts.vllm is None:
            return self
        if self.training.deterministic:
            raise ValueError(
                "rollouts.vllm: samples of vLLM depend on the other requests that it runs, so "
                "no run can be repeated exactly; set training.deterministic = false, or leave "
                "rollouts.vllm out"
            )
        if not parse_bounds(self.rollouts.actors).least:
            raise ValueError("rollouts.vllm: vLLM runs in actors; set rollouts.actors to 1 or more")
        if self.lora:
            raise ValueError(
                "rollouts.vllm and lora: vLLM loads whole models, not adapters; leave one of "
                "them out"
            )
        return self

    @model_validator(mode="after")
    def _check_rewards(self) -> Self:
        if not (self.rewards or self.environment or self.teacher):
            raise ValueError(
                'rewards: none is given; write one, such as [[rewards]] kind = "ExactAnswer"'
            )
        if self.environment and self.rollouts.stop:
            raise ValueError(
                "rollouts.stop and [environment]: the environment decides where a turn ends; "
                "leave `stop` out"
            )
        return self

    @model_validator(mode="after")
    def _check_sampled_model(self) -> Self:
        if self.lora and self.lora.dropout:
            raise ValueError(
                "lora.dropout: log-probabilities from sampling and from training would differ "
                "by dropout; leave it out"
            )
        if self.lora:
            self.training.check_adapters()
        if self.training.compile:
            raise ValueError(
                "training.compile: sampling calls the model with another shape for each "
                "token, and each one would be compiled; leave it out"
            )
        return self


@dataclass(frozen=True)
class SampledRows:
    """Sizes of a micro-batch of completions."""

    rows: int  # number of completions
    prompts: int  # number of different prompts
    prompt_tokens: int  # tokens of the longest prompt
    new_tokens: int  # most tokens of a completion
    scaled: bool  # logits are divided by a temperature
    sampled_here: bool = True  # the workers sample, not separate actors

    @property
    def length(self) -> int:
        """Number of places of a row; the last token's logits are not needed, so it has no place."""
        return self.prompt_tokens + self.new_tokens - 1

    @property
    def tokens(self) -> int:
        """Number of places of all rows."""
        return self.rows * self.length

    @property
    def places(self) -> int:
        """Number of places with logits."""
        return self.rows * self.new_tokens


def describe_rows(run: ReinforcementLearning, longest: int) -> SampledRows:
    """Return the largest micro-batch of `run`, whose longest prompt has `longest` tokens."""
    wanted = run.rollouts
    return SampledRows(
        rows=wanted.micro_batch,
        prompts=wanted.micro_batch // wanted.samples,
        prompt_tokens=longest,
        new_tokens=wanted.maximum_tokens,
        scaled=wanted.temperature != 1,
        sampled_here=wanted.actors == 0,
    )
