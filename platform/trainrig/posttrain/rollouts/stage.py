"""The stage `rl`: reinforcement learning in the loop of pretraining, on batches of rollouts."""

import functools

from trainrig import manifest, storage
from trainrig.errors import ConfigError
from trainrig.manifest import Manifest
from trainrig.models.decoder_config import DecoderConfig
from trainrig.models.encoder_decoder.config import EncoderDecoderConfig
from trainrig.objectives.preference import REFERENCE_MODEL
from trainrig.posttrain.initial_model import open_initial_model
from trainrig.posttrain.prompt_text import PromptEncoder
from trainrig.posttrain.rewards.weighted import build_rewards, reward_inputs
from trainrig.posttrain.rollouts.batches import open_rollouts
from trainrig.posttrain.rollouts.prompts import FORMAT, read_prompt_set
from trainrig.posttrain.rollouts.run_file import ReinforcementLearning
from trainrig.tokens.documents.files import named, paths_of
from trainrig.tokens.encoding.encode import Encoder
from trainrig.train import checkpoint
from trainrig.train.job import Adapter, FrozenModel, TrainingJob
from trainrig.train.pretrain import drive


def reinforce(run: ReinforcementLearning) -> Manifest:
    """Train to the end of `run`, going on where an earlier call stopped.

    Raises InputError for what cannot work, before any worker starts; ClusterError when workers
    fail more often than the run allows.
    """
    job, inputs, counted = prepare(run)
    stage = manifest.claim(job.folder, run, inputs)
    if stage.finished:
        return stage.finished
    if job.adapter:
        checkpoint.keep_base(job.adapter, job.folder)
    return drive(stage, run, job, run.workers, counted)


def prepare(
    run: ReinforcementLearning,
) -> tuple[TrainingJob, dict[str, str], dict[str, int]]:
    """The job that `run` describes, the fingerprints of its inputs, and what is in them."""
    path = open_initial_model(storage.absolute(run.checkpoint), storage.absolute(run.output))
    model, tokenizer = checkpoint.describe(path)
    files = checkpoint.tokenizer_files(path)
    if checkpoint.adapter_of(path, checkpoint.read_entries(path)):
        raise ConfigError(
            f"checkpoint: {path} holds an adapter alone; `trainrig export` merges it with its base "
            "into a folder, which may be named here"
        )
    _check(run, path, model)
    encoder = PromptEncoder(Encoder.of(files))
    build_rewards(run.rewards)
    paths = paths_of(FORMAT, run.prompts.paths)
    at_paths = tuple(map(storage.absolute, paths))
    run = run.model_copy(update={"prompts": run.prompts.model_copy(update={"paths": at_paths})})
    columns = tuple(name for part in run.rewards for name in part.columns)
    asked = read_prompt_set(run.prompts, encoder, run.rollouts.prompt_tokens, columns)
    keys = zip(named(paths), map(storage.content_key, paths), strict=True)
    prompts = manifest.digest([list(each) for each in keys])
    frozen = {REFERENCE_MODEL: FrozenModel(model, path)} if run.objective.reference else {}
    job = TrainingJob(
        folder=storage.absolute(run.output),
        model=model,
        training=run.training.at_absolute_paths(),
        make_batches=functools.partial(open_rollouts, run, encoder, prompts),
        tokenizer=tokenizer,
        beside=files.beside,
        objective=run.objective,
        initial_weights=None if run.lora else path,
        adapter=Adapter(run.lora, path, checkpoint.manifest_sum(path)) if run.lora else None,
        frozen=frozen,
    )
    inputs = {
        "checkpoint": checkpoint.content_key(path),
        "prompts": prompts,
        **reward_inputs(run.rewards),
    }
    counted = {"prompts": len(asked.prompts), "prompts_left_out": sum(asked.left_out.values())}
    if run.lora:
        # Here, as who trains no adapter should not wait for torch.
        from trainrig.models.lora.layers import count_adapter

        counted["parameters_trained"] = count_adapter(model, run.lora)
    return job, inputs, counted


def _check(run: ReinforcementLearning, path: str, model: DecoderConfig) -> None:
    if model.head == "score":
        raise ConfigError(
            f"checkpoint: {path} is a reward model, which scores and does not speak; name a "
            "language model"
        )
    if isinstance(model, EncoderDecoderConfig):
        raise ConfigError(f"checkpoint: {path} has an encoder and a decoder; name a decoder's")
    if model.bidirectional:
        raise ConfigError(f"checkpoint: {path} is an encoder, which generates nothing")
    longest = run.rollouts.prompt_tokens + run.rollouts.maximum_tokens
    if longest > model.positions:
        raise ConfigError(
            f"rollouts: prompt_tokens ({run.rollouts.prompt_tokens}) and maximum_tokens "
            f"({run.rollouts.maximum_tokens}) are more than the model's {model.positions} "
            "positions; lower one of them"
        )
    run.training.schedule.warmup_steps(run.training.steps)
    run.training.check_workers(run.workers)
    run.training.check_parameters(model)
