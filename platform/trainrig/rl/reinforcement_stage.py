"""Stage `rl`: reinforcement learning on rollouts, which runs the training loop of pretraining."""

import functools
from collections.abc import Mapping

from trainrig import manifest, storage
from trainrig.errors import ConfigError
from trainrig.manifest import Manifest
from trainrig.models.architecture.decoder_config import DecoderConfig, count_parameters
from trainrig.models.architecture.encoder_configs import EncoderDecoderConfig
from trainrig.objectives.on_policy_distillation import TEACHER_MODEL
from trainrig.objectives.policy.ppo import CRITIC_MODEL
from trainrig.objectives.preference import REFERENCE_MODEL
from trainrig.posttrain.model_source import open_initial_model
from trainrig.posttrain.prompt_files import FORMAT, PromptSet, read_prompt_set
from trainrig.posttrain.prompt_text import PromptEncoder
from trainrig.posttrain.rewards.weighted_rewards import hash_reward_inputs
from trainrig.rl.masked_prompts import PromptMasks, check_masks, explain_unmaskable
from trainrig.rl.partial_batches import PartialRolloutBatches
from trainrig.rl.reinforcement_run_file import ReinforcementLearning, describe_rows
from trainrig.rl.rollout_actors import RolloutPool
from trainrig.rl.rollout_batches import RolloutBatches, open_rewards
from trainrig.tokens.document_set import find_paths, name_files
from trainrig.tokens.rows.masked_documents import MaskedDocuments, read_masked_documents
from trainrig.tokens.tokenizers.encode import Encoder
from trainrig.train import checkpoint
from trainrig.train.pretrain import drive
from trainrig.train.run_file.worker_settings import parse_bounds
from trainrig.train.run_start import claim_run
from trainrig.train.training_job import Adapter, ExtraActors, FrozenModel, TrainedModel, TrainingJob


def reinforce(run: ReinforcementLearning) -> Manifest:
    """Train to the end of `run`, resuming where an earlier call stopped.

    Raises InputError before any worker starts if the settings or inputs cannot work, ClusterError
    if workers fail more often than the run allows.
    """
    job, inputs, counted = prepare(run, read_masks(run))
    stage = claim_run(job.folder, run, run.training, inputs)
    if stage.finished:
        return stage.finished
    if job.adapter:
        checkpoint.keep_base(job.adapter, job.folder)
    return drive(stage, run, job, run.workers, counted)


def read_masks(run: ReinforcementLearning) -> MaskedDocuments | None:
    """Read the masked prompts that `run` names; return None if it names none."""
    return None if run.masked_documents is None else read_masked_documents(run.masked_documents)


def prepare(
    run: ReinforcementLearning, masked: MaskedDocuments | None = None
) -> tuple[TrainingJob, dict[str, str], dict[str, int]]:
    """Return the training job of `run`, with the fingerprints and the counts of its inputs.

    `masked`: the prompts that are not trained on.
    """
    job, inputs, counted, _longest = prepare_with_prompts(run, masked)
    return job, inputs, counted


def prepare_with_prompts(
    run: ReinforcementLearning, masked: MaskedDocuments | None = None
) -> tuple[TrainingJob, dict[str, str], dict[str, int], int]:
    """Return the results of `prepare`, and the number of tokens of the longest prompt."""
    path = open_initial_model(
        storage.make_absolute(run.checkpoint), storage.make_absolute(run.output)
    )
    model, tokenizer = checkpoint.describe(path)
    files = checkpoint.read_tokenizer_files(path)
    _check(run, path, model)
    encoder = PromptEncoder(Encoder.of(files))
    rewards = tuple(part.resolve_paths() for part in run.rewards)
    environment = run.environment and run.environment.resolve_paths()
    run = run.model_copy(update={"rewards": rewards, "environment": environment})
    open_rewards(run)
    if environment:
        environment.open()
    paths = find_paths(FORMAT, run.prompts.paths)
    at_paths = tuple(map(storage.make_absolute, paths))
    run = run.model_copy(update={"prompts": run.prompts.model_copy(update={"paths": at_paths})})
    columns = tuple(name for part in run.rewards for name in part.columns)
    prompt_set = read_prompt_set(run.prompts, encoder, run.rollouts.prompt_tokens, columns)
    keys = zip(name_files(paths), map(storage.compute_content_key, paths), strict=True)
    prompts = manifest.digest([list(pair) for pair in keys])
    if masked:
        _check_masked(run, masked, prompt_set, prompts)
    frozen = {REFERENCE_MODEL: FrozenModel(model, path)} if run.objective.reference else {}
    if teacher := _find_teacher(run, encoder.encoder):
        frozen[TEACHER_MODEL] = teacher
    critic = _find_critic(run, path, encoder.encoder)
    longest = max(len(prompt.ids) for prompt in prompt_set.prompts)
    make_batches = (
        functools.partial(PartialRolloutBatches, run, encoder, prompts)
        if run.rollouts.partial
        else functools.partial(RolloutBatches, run, encoder, prompts, masked)
    )
    actors = parse_bounds(run.rollouts.actors)
    job = TrainingJob(
        folder=storage.make_absolute(run.output),
        model=model,
        training=run.training.make_paths_absolute(),
        make_batches=make_batches,
        tokenizer=tokenizer,
        beside=files.beside,
        objective=run.objective,
        initial_weights=None if run.lora else path,
        adapter=Adapter(run.lora, path, checkpoint.compute_manifest_sum(path))
        if run.lora
        else None,
        frozen=frozen,
        trained={} if critic is None else {CRITIC_MODEL: critic},
        extra_actors=ExtraActors(actors, RolloutPool) if actors.most else None,
        tokens_at_once=describe_rows(run, longest).tokens,
    )
    job.check_budget()
    inputs = _hash_inputs(run, path, prompts)
    if masked:
        inputs["masked_documents"] = masked.sha256
    if teacher:
        inputs["teacher"] = checkpoint.compute_content_key(teacher.weights)
    if critic:
        inputs["critic"] = checkpoint.compute_content_key(critic.weights)
    return job, inputs, _count_inputs(run, prompt_set, model, teacher, critic), longest


def _check_masked(
    run: ReinforcementLearning, masked: MaskedDocuments, prompt_set: PromptSet, prompts: str
) -> None:
    """Raise ConfigError if the masked prompts are not of this run, or if no mask is exact."""
    if reason := explain_unmaskable(run):
        raise ConfigError(f"masked_documents: {reason}, so prompts cannot be masked exactly")
    check_masks(masked, prompt_set, prompts)
    PromptMasks(run, prompt_set, masked)


def _count_inputs(
    run: ReinforcementLearning,
    prompt_set: PromptSet,
    model: DecoderConfig,
    teacher: FrozenModel | None,
    critic: TrainedModel | None,
) -> dict[str, int]:
    """Return the numbers of prompts, and of parameters that are trained or help to train."""
    counted = {
        "prompts": len(prompt_set.prompts),
        "prompts_left_out": sum(prompt_set.left_out.values()),
    }
    if run.lora:
        # Imported here: this imports torch, which takes seconds, and only adapters need it.
        from trainrig.models.lora import count_adapter

        counted["parameters_trained"] = count_adapter(model, run.lora)
    if teacher:
        counted["parameters_of_teacher"] = count_parameters(teacher.model).total
    if critic:
        counted["parameters_of_critic"] = count_parameters(critic.model).total
    return counted


def _hash_inputs(run: ReinforcementLearning, path: str, prompts: str) -> dict[str, str]:
    """Return the fingerprints of the checkpoint, the prompts, the rewards and the environment."""
    environment = run.environment.hash_inputs() if run.environment else {}
    return {
        "checkpoint": checkpoint.compute_content_key(path),
        "prompts": prompts,
        **hash_reward_inputs(run.rewards),
        **{f"environment.{name}": key for name, key in environment.items()},
    }


def describe_foreign_inputs(run: ReinforcementLearning) -> dict[str, str]:
    """Return facts for `trainrig check` on the external inputs of rewards and environment."""
    foreign: dict[str, str] = {}
    for part in run.rewards:
        foreign |= _name_inputs(part.name, part.kind, part.resolve_paths().hash_inputs())
    if run.environment:
        there = run.environment
        foreign |= _name_inputs(there.name, there.kind, there.resolve_paths().hash_inputs())
    return foreign


def _name_inputs(name: str, kind: str, inputs: Mapping[str, str]) -> dict[str, str]:
    """Return facts for `trainrig check` on the external inputs of a reward or environment."""
    return {f"{name}_{of}": f"{kind}, SHA-256 {key[:16]}" for of, key in inputs.items()}


def _find_critic(run: ReinforcementLearning, start: str, encoder: Encoder) -> TrainedModel | None:
    """Return the initial critic, or None if the objective has no critic.

    Raises ConfigError if its tokenizer differs from `encoder`, or if it has too few positions.
    """
    wanted = run.settled_critic
    if wanted is None:
        return None
    path = (
        checkpoint.resolve(storage.make_absolute(wanted.checkpoint)) if wanted.checkpoint else start
    )
    there = _describe_reader(run, "critic.checkpoint", path, encoder)
    model = there if there.head == "score" else there.with_score_head()
    return TrainedModel(model, path, wanted.optimizer, wanted.clip_norm)


def _find_teacher(run: ReinforcementLearning, encoder: Encoder) -> FrozenModel | None:
    """Return the teacher of on-policy distillation, or None if the run has no teacher.

    Raises ConfigError if its tokenizer differs from `encoder`, if it has too few positions, or if
    it is no language model.
    """
    if run.teacher is None:
        return None
    path = checkpoint.resolve(storage.make_absolute(run.teacher))
    there = _describe_reader(run, "teacher", path, encoder)
    if there.head != "tokens" or there.bidirectional or isinstance(there, EncoderDecoderConfig):
        raise ConfigError(
            f"teacher: {path} does not predict the next token of a text; name a language model"
        )
    return FrozenModel(there, path)


def _describe_reader(
    run: ReinforcementLearning, field: str, path: str, encoder: Encoder
) -> DecoderConfig:
    """Return the shape of the model at `path`, which reads the completions of the policy.

    Raises ConfigError if its tokenizer differs from `encoder`, if it has too few positions, or if
    the checkpoint is an adapter alone. `field` is the setting that the message names.
    """
    there, _ = checkpoint.describe(path)
    if Encoder.of(checkpoint.read_tokenizer_files(path)).fingerprint != encoder.fingerprint:
        raise ConfigError(
            f"{field}: {path} has another tokenizer than the model to train, so it can't read "
            "the completions; name a model with the same tokenizer"
        )
    if checkpoint.read_adapter(path, checkpoint.read_entries(path)):
        raise ConfigError(
            f"{field}: {path} holds an adapter alone; merge it with its base by `trainrig "
            "export`, and name the folder that it writes"
        )
    longest = run.rollouts.prompt_tokens + run.rollouts.maximum_tokens
    if longest > there.positions:
        raise ConfigError(
            f"{field}: {path} has {there.positions} positions, but rollouts may need "
            f"{longest}; name another model, or lower rollouts.maximum_tokens"
        )
    return there


def _check(run: ReinforcementLearning, path: str, model: DecoderConfig) -> None:
    if checkpoint.read_adapter(path, checkpoint.read_entries(path)):
        raise ConfigError(
            f"checkpoint: {path} holds an adapter alone; merge it with its base by `trainrig "
            "export`, and name the folder that it writes"
        )
    if model.head != "tokens":
        raise ConfigError(
            f"checkpoint: {path} is {model.description}, which generates no text; name a "
            "language model"
        )
    if isinstance(model, EncoderDecoderConfig):
        raise ConfigError(f"checkpoint: {path} has an encoder and a decoder; name a decoder")
    if model.bidirectional:
        raise ConfigError(
            f"checkpoint: {path} is an encoder, which generates no text; name a language model"
        )
    longest = run.rollouts.prompt_tokens + run.rollouts.maximum_tokens
    if longest > model.positions:
        raise ConfigError(
            f"rollouts: prompt_tokens ({run.rollouts.prompt_tokens}) and maximum_tokens "
            f"({run.rollouts.maximum_tokens}) add up to more than the model's "
            f"{model.positions} positions; lower one of them"
        )
    run.training.schedule.warmup_steps(run.training.steps)
    run.training.check_workers(run.workers)
    run.training.check_parameters(model)
