"""What reinforcement learning is told."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import field_validator, model_validator

from trainrig.config import NOT_IDENTITY, OUTPUT, Field, Settings
from trainrig.config.resource_request import ResourceRequest
from trainrig.errors import ConfigError
from trainrig.evaluate.tasks.templates import compile_template
from trainrig.models.lora.settings import LoRA
from trainrig.objectives import GRPO, PPO, OnPolicyDistillation, Policy, ReinforcePlusPlus
from trainrig.optim import AdamW, Optimizer
from trainrig.posttrain.environments import EnvironmentSettings
from trainrig.posttrain.rewards import RewardSettings
from trainrig.tokens.batches import check_divides
from trainrig.train.run_file.run_files import TrainingRunFile
from trainrig.train.run_file.training import Training
from trainrig.train.spikes import Spikes
from trainrig.train.worker_bounds import ExtraWorkers, Workers, parse_bounds


class PromptFiles(Settings):
    """Rows of JSON lines, each a prompt with what its answers are compared with."""

    # Files, folders and patterns (* and ? are wildcards), on disk or s3://; may be packed.
    paths: Annotated[tuple[str, ...], NOT_IDENTITY, Field(min_length=1)]
    # Template of the prompt, in Jinja's sandbox, over the columns of a row. With `chat`, a column
    # of messages that is all of the template is a conversation, with the row's `tools`.
    template: str = "{{ prompt }}"
    # Whether the prompt is a user's message that the model answers by its chat template; else it is
    # text that the model goes on from.
    chat: bool = False

    @field_validator("template")
    @classmethod
    def _is_a_template(cls, given: str) -> str:
        try:
            compile_template(given, "template")
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return given


class VllmSettings(Settings):
    """Sampling by vLLM, on the GPU of each actor, beside the model that reads what was sampled."""

    memory: float = Field(default=0.5, gt=0, le=1)  # share of the GPU's memory that vLLM takes


class PartialRollouts(Settings):
    """Completions that are left off after some tokens, and gone on with by the weights of later
    batches (Kimi 2025, arXiv:2501.12599, section 2.6)."""

    # Tokens by which a wave goes on with each completion, at most.
    budget: int = Field(ge=1)
    # Batches by which the weights that sampled a token may be behind those that its batch is made
    # with, at most. What is due is waited for: nothing is cut or thrown away.
    staleness: int = Field(default=4, ge=1)


class Rollouts(Settings):
    """How completions are sampled, and how many of them make a batch."""

    prompts: int = Field(ge=1)  # prompts of a batch, over all workers
    samples: int = Field(default=8, ge=1)  # completions of each prompt: a group
    # Completions that are sampled together and trained on in one pass, whole groups; more take more
    # memory.
    micro_batch: int = Field(ge=1)
    # Steps that each batch is trained on, one after another. Above 1, later ones are off-policy, as
    # far as the clip of ratios lets them.
    updates: int = Field(default=1, ge=1)
    prompt_tokens: int = Field(default=512, ge=1)  # longest prompt; longer ones are left out
    maximum_tokens: int = Field(default=256, ge=1)  # of a completion, at most
    temperature: float = Field(default=1.0, gt=0, allow_inf_nan=False)  # of sampling
    # Texts that end a completion where one first appears; they are no part of what is scored.
    stop: tuple[str, ...] = ()
    # Times that a prompt whose completions are all worth the same is replaced by another, as there
    # is nothing to learn of it (DAPO's dynamic sampling). What is flat after that is kept.
    redraws: int = Field(default=0, ge=0)
    # Waves of `prompts` further prompts that a batch draws at most, until so many have completions
    # that are not all worth the same; the first of those are the batch (DAPO's dynamic sampling, by
    # whole waves). What the last wave leaves open is filled with flat ones. 1: takes what it drew.
    waves: int = Field(default=1, ge=1)
    # Nats by which the log-probability of a token as it was sampled may differ from that which
    # training reads, on average over a micro-batch; above it the run ends, as it would learn of
    # another model than it samples from.
    largest_gap: float = Field(default=0.02, gt=0, allow_inf_nan=False)
    seed: int = 0  # random seed of the order of prompts and of what is sampled
    # Ray actors that sample beside the workers: a number, or [fewest, most] to take what room there
    # is; 0: the workers sample, between steps. The same bytes, whatever the number.
    actors: ExtraWorkers = 0
    # Batches by which sampling is ahead, so that actors sample while workers train: batch n is
    # sampled from the weights before batch n - lag. 0: on-policy.
    lag: int = Field(default=0, ge=0)
    # Leave long completions off, to go on with them beside those of later prompts; groups are
    # trained on once they are whole. None: a batch is sampled from start to end.
    partial: PartialRollouts | None = None
    # With a lag or with partial rollouts, the most that a token's loss is weighed with: how much
    # likelier the weights of now make it than those that sampled it (Espeholt et al. 2018,
    # arXiv:1802.01561, section 4.1).
    importance_limit: float = Field(default=2.0, ge=1, allow_inf_nan=False)
    # What is sampled by vLLM, which must be installed on the actors' machines; None: by trainrig's
    # own generation. What vLLM draws depends on what else it draws, so no run of it is repeated
    # exactly: training.deterministic must be false.
    vllm: VllmSettings | None = None

    @property
    def drops_flat_by(self) -> str:
        """The key by which flat groups are replaced; empty: they are kept."""
        return "redraws" if self.redraws else "waves" if self.waves > 1 else ""

    @model_validator(mode="after")
    def _groups_fit(self) -> Self:
        if self.micro_batch % self.samples:
            above = self.micro_batch + self.samples - self.micro_batch % self.samples
            raise ValueError(
                f"micro_batch ({self.micro_batch} completions) splits a group of {self.samples} "
                f"samples; the nearest above: {above}"
            )
        check_divides(self.prompts * self.samples, self.micro_batch)
        return self

    @model_validator(mode="after")
    def _waves_are_of_now(self) -> Self:
        if self.waves > 1 and self.redraws:
            raise ValueError(
                "waves and redraws: both replace prompts that are flat; leave one of them out"
            )
        if self.waves > 1 and self.lag:
            raise ValueError(
                "waves and lag: how many waves the batches before take is not known yet when a "
                "later one is sampled; set lag = 0, or give redraws in place of waves"
            )
        return self

    @model_validator(mode="after")
    def _what_is_left_off_goes_on(self) -> Self:
        for name, normal in (("waves", 1), ("redraws", 0), ("lag", 0)):
            if self.partial and getattr(self, name) != normal:
                raise ValueError(
                    f"partial and {name}: which groups a batch is of depends on what the batches "
                    f"before have left, whole; leave {name} or [rollouts.partial] out"
                )
        return self


class Critic(Settings):
    """The model that says what is still to be had, of PPO."""

    # Model that it begins with, a run folder or checkpoint: a reward model, say; None: that of the
    # policy, with a head for values that is drawn.
    checkpoint: Annotated[str | None, NOT_IDENTITY] = None
    optimizer: Optimizer = AdamW(lr=1e-5, weight_decay=0.0)  # its own, at its own peak rate
    # Norm above which its gradient, by itself, is scaled down to it.
    clip_norm: float = Field(default=1.0, gt=0)


class PolicyTraining(Training):
    """How long to train, and how."""

    # What to do about spikes of the loss; None: nothing but for losses that are not finite. The
    # loss of a policy is about 0 whatever it is worth.
    spikes: Spikes | None = None


class ReinforcementLearning(TrainingRunFile):
    """`trainrig rl`: a checkpoint, taught by what its own answers are worth."""

    verb: ClassVar[str] = "rl"
    estimate: ClassVar[str] = "trainrig.posttrain.rollouts.stage:estimate_rollouts"
    output_format: ClassVar[int] = 2  # settings of objectives are part of a batch's identity

    stage: Literal["rl"] = "rl"
    # Model to start from: a run folder, a checkpoint, or a folder of Hugging Face.
    checkpoint: Annotated[str, NOT_IDENTITY]
    prompts: PromptFiles  # what the model is asked
    output: Annotated[str, OUTPUT]  # run folder to write, on disk or s3://
    workers: Workers = 1  # worker processes: a number, or [fewest, most] to take what room there is
    rollouts: Rollouts  # how completions are sampled
    # What completions are worth: a weighted sum of all; may be empty where an environment rewards.
    rewards: tuple[RewardSettings, ...] = ()
    # What answers the model in the midst of a completion; None: nothing does.
    environment: EnvironmentSettings | None = None
    objective: Annotated[Policy, Field(discriminator="kind")] = GRPO()  # what training makes small
    critic: Critic | None = None  # of PPO; None: as it is by default
    # Frozen model that OnPolicyDistillation learns from, of the same tokenizer: a run folder or
    # checkpoint; None: the objective learns from none.
    teacher: Annotated[str | None, NOT_IDENTITY] = None
    # Low-rank adapters to train beside the frozen model; None: the model itself is trained.
    lora: LoRA | None = None
    training: PolicyTraining  # how long to train, and how

    @property
    def settled_critic(self) -> Critic | None:
        """The critic of the objective; None: it has none."""
        return (self.critic or Critic()) if isinstance(self.objective, PPO) else None

    def request_resources(self, there_are_gpus: bool) -> ResourceRequest:
        """Its workers and its actors, each with a GPU where there are any."""
        both = [parse_bounds(each) for each in (self.workers, self.rollouts.actors)]
        total = sum(each.least for each in both), sum(each.most for each in both)
        return ResourceRequest.on_devices(total, there_are_gpus)

    @model_validator(mode="after")
    def _a_lag_is_kept(self) -> Self:
        for name in ("spikes", "skip_data"):
            if self.rollouts.lag and getattr(self.training, name):
                raise ValueError(
                    f"rollouts.lag and training.{name}: weights from before data that is gone past "
                    "are no longer there to sample with; leave one of them out"
                )
        return self

    @model_validator(mode="after")
    def _waves_have_a_cursor(self) -> Self:
        for name in ("spikes", "skip_data"):
            if self.rollouts.waves > 1 and getattr(self.training, name):
                raise ValueError(
                    f"rollouts.waves and training.{name}: data that is gone past would be drawn by "
                    "the next batch, as waves go on from the last one; leave one of them out"
                )
        return self

    @model_validator(mode="after")
    def _what_is_left_off_is_there_to_go_on_with(self) -> Self:
        if self.rollouts.partial is None:
            return self
        for name in ("spikes", "skip_data"):
            if getattr(self.training, name):
                raise ValueError(
                    f"rollouts.partial and training.{name}: what data that is gone past has left "
                    "would be gone past, too; leave one of them out"
                )
        if self.environment:
            raise ValueError(
                "rollouts.partial and [environment]: an environment's state is not kept from batch "
                "to batch; leave one of them out"
            )
        return self

    @model_validator(mode="after")
    def _groups_are_groups(self) -> Self:
        kind = self.objective.kind
        if self.critic and not isinstance(self.objective, PPO):
            raise ValueError(
                f"critic: {kind} has none; leave it out, or set objective.kind = 'PPO'"
            )
        alone = isinstance(self.objective, PPO | OnPolicyDistillation) or (
            isinstance(self.objective, ReinforcePlusPlus) and self.objective.baseline == "none"
        )
        if self.rollouts.samples == 1 and not alone:
            raise ValueError(
                f"rollouts.samples: {kind} compares the completions of a prompt with each other; "
                "give 2 or more"
            )
        if self.rollouts.samples == 1 and (name := self.rollouts.drops_flat_by):
            raise ValueError(
                f"rollouts.{name}: a single completion is never worth the same as others; leave it "
                "out, or give more samples"
            )
        return self

    @model_validator(mode="after")
    def _a_teacher_for_who_learns_from_one(self) -> Self:
        taught = isinstance(self.objective, OnPolicyDistillation)
        if self.teacher and not taught:
            raise ValueError(
                f"teacher: {self.objective.kind} learns from none; leave it out, or set "
                "objective.kind = 'OnPolicyDistillation'"
            )
        if taught and not self.teacher:
            raise ValueError("teacher: none; name the checkpoint that OnPolicyDistillation is of")
        if taught and (name := self.rollouts.drops_flat_by):
            raise ValueError(
                f"rollouts.{name}: a teacher has something to say of each completion, also where "
                "all are worth the same; leave it out"
            )
        return self

    @model_validator(mode="after")
    def _vllm_samples_beside(self) -> Self:
        if self.rollouts.vllm is None:
            return self
        if self.training.deterministic:
            raise ValueError(
                "rollouts.vllm: what vLLM samples depends on what else it samples, so no run is "
                "repeated exactly; set training.deterministic = false, or leave it out"
            )
        if not parse_bounds(self.rollouts.actors).least:
            raise ValueError("rollouts.vllm: actors sample by it; set rollouts.actors = 1 or more")
        if self.lora:
            raise ValueError(
                "rollouts.vllm and lora: vLLM is given whole models; leave one of them out"
            )
        return self

    @model_validator(mode="after")
    def _something_is_worth_something(self) -> Self:
        if not (self.rewards or self.environment or self.teacher):
            raise ValueError('rewards: none; write one, such as [[rewards]] kind = "ExactAnswer"')
        if self.environment and self.rollouts.stop:
            raise ValueError(
                "rollouts.stop and [environment]: a turn ends where the environment says; leave "
                "`stop` out"
            )
        return self

    @model_validator(mode="after")
    def _only_what_can_be_sampled_from(self) -> Self:
        if self.lora and self.lora.dropout:
            raise ValueError(
                "lora.dropout: what samples and what is trained would differ by it; leave it out"
            )
        if self.lora:
            self.training.check_adapters()
        if self.training.compile:
            raise ValueError(
                "training.compile: sampling calls the model with another shape for each token, "
                "which is compiled anew each time; leave it out"
            )
        return self
