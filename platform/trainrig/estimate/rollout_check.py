"""What `trainrig check` says of `rl`: sizes, prompts, and memory of making and training batches.

A batch is made by sampling completions, which all models then read.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from trainrig import storage
from trainrig.estimate import activation_bytes
from trainrig.estimate.activation_bytes import MASTER, estimate_reading
from trainrig.estimate.cost_estimate import DeviceChoice
from trainrig.estimate.held_parameters import (
    NOT_GATHERED,
    EndParts,
    HeldParameters,
    ModelBeside,
    ModelRole,
    hold_beside,
    hold_model,
)
from trainrig.estimate.model_parallel_memory import estimate_worker_memory
from trainrig.estimate.step_memory import Memory, TuningStep, estimate_cache_memory
from trainrig.estimate.training_check import (
    TuningFacts,
    describe_adapters,
    describe_sizes,
    describe_tuning,
)
from trainrig.models.architecture.decoder_config import DecoderConfig, count_parameters
from trainrig.models.architecture.lora_settings import LoRA
from trainrig.posttrain.model_source import is_hub_folder
from trainrig.posttrain.rewards.model_rewards import JudgeModel, RewardModel
from trainrig.rl.reinforcement_run_file import ReinforcementLearning, SampledRows, describe_rows
from trainrig.rl.reinforcement_stage import describe_foreign_inputs, prepare_with_prompts
from trainrig.train import checkpoint
from trainrig.train.run_file.training_settings import Training
from trainrig.train.training_job import TrainingJob


def estimate_rollouts(run: ReinforcementLearning, machine: DeviceChoice) -> dict[str, Any]:
    """Return facts for `trainrig check`: model sizes, prompt counts, and device memory.

    The result is empty if the checkpoint does not exist yet, or is a Hugging Face folder, which is
    converted only when the run starts. Raises InputError if the settings or inputs cannot work.
    """
    if not storage.find_first(run.checkpoint) or is_hub_folder(run.checkpoint):
        return {}
    job, _inputs, counted, longest = prepare_with_prompts(run)
    facts = describe_sizes(job.model) | counted | describe_adapters(run.lora, job.model)
    return (
        facts | describe_foreign_inputs(run) | describe_rollout_memory(run, job, longest, machine)
    )


def describe_rollout_memory(
    run: ReinforcementLearning, job: TrainingJob, longest: int, machine: DeviceChoice
) -> TuningFacts:
    """Return facts about the memory that a device needs for `job`, for `trainrig check`.

    The need is the larger of the peaks of making a batch and of a training step. `longest` is the
    number of tokens of the longest prompt.
    """
    rows = describe_rows(run, longest)
    reward_models = find_reward_models(run) if rows.sampled_here else []
    facts: TuningFacts = {
        "largest_micro_batch": f"{rows.rows} rows of {rows.length} places, logits of {rows.places}"
    }
    left_out = []
    if reward_models:
        facts["parameters_of_reward_models"] = sum(
            count_parameters(config).total for config in reward_models
        )
        left_out.append("activations of reward models (their weights are counted)")
    if not rows.sampled_here:
        left_out.append("devices of actors, which sample and run reward models")

    def find(training: Training, workers: int, on_cpu: bool) -> Memory:
        return max(
            estimate_making(run, job, rows, reward_models, training, workers, on_cpu),
            estimate_step(run, job, rows, reward_models, training, workers),
            key=lambda memory: memory.total,
        )

    arguments = job.model, job.training, run.workers, machine, find, rows.tokens, run.lora
    return facts | describe_tuning(*arguments, left_out)


def find_reward_models(run: ReinforcementLearning) -> list[DecoderConfig]:
    """Return the shapes of the reward models and judges of `run`.

    Every process that samples completions holds all of them unsharded, in float32.
    """
    models = [part for part in run.rewards if isinstance(part, RewardModel | JudgeModel)]
    return [checkpoint.describe(checkpoint.resolve(part.checkpoint))[0] for part in models]


def estimate_making(
    run: ReinforcementLearning,
    job: TrainingJob,
    rows: SampledRows,
    reward_models: Sequence[DecoderConfig],
    training: Training,
    workers: int,
    on_cpu: bool,
) -> Memory:
    """Estimate the peak memory of one of `workers` that makes a batch.

    `reward_models` are the reward models that it holds.
    """
    others = _list_others(run, job)
    made = estimate_batch_making_memory(
        job.model, training, workers, rows, run.lora, others, on_cpu
    )
    return replace(made, weights=made.weights + _count_bytes(reward_models))


def estimate_step(
    run: ReinforcementLearning,
    job: TrainingJob,
    rows: SampledRows,
    reward_models: Sequence[DecoderConfig],
    training: Training,
    workers: int,
) -> Memory:
    """Estimate the peak memory of one of `workers` in a training step.

    `reward_models` are the reward models that it holds.
    """
    size = training.precision.bytes
    reward_model_bytes = _count_bytes(reward_models)
    beside = HeldParameters(
        0, 0, EndParts(0), 0, 0, reward_model_bytes, 0.0, 0.0, False, NOT_GATHERED
    )
    places: int | None = rows.places
    activations = 0.0
    for other in _list_others(run, job):
        beside = beside.hold_beside(hold_beside(other, training, workers), size)
        if other.optimizer is not None:
            activations += rows.tokens * sum(
                activation_bytes.estimate_per_token(other.model, training)
            )
        elif other.in_steps:  # a block of the teacher's logits besides one of the student's
            places = None
            activations += activation_bytes.estimate_at_head(
                job.model, size, rows.places, None, run.lora
            )
            activations += size * min(
                rows.places * other.model.outputs, activation_bytes.HEAD_BLOCK
            )
    tuning = TuningStep(run.lora, places, beside, activations)
    count = run.rollouts.prompts * run.rollouts.samples
    return estimate_worker_memory(
        job.model, training, workers, count, rows.rows, rows.length, tuning=tuning
    )


def _list_others(run: ReinforcementLearning, job: TrainingJob) -> list[ModelBeside]:
    """Return the models held besides the policy: a reference or a teacher, and a critic."""
    whole = run.objective.needs_teacher and not run.objective.credits_teacher
    return [
        *(ModelBeside(frozen.model, in_steps=whole) for frozen in job.frozen.values()),
        *(ModelBeside(trained.model, trained.optimizer) for trained in job.trained.values()),
    ]


def _count_bytes(reward_models: Sequence[DecoderConfig]) -> float:
    return float(MASTER * sum(count_parameters(config).total for config in reward_models))


# Bytes for each logit of a token in addition to the logit: as float32, divided by the temperature,
# and the values drawn from, which a GPU leaves to the host.
DRAWN = 3 * activation_bytes.MASTER
DRAWN_ON_CPU = 6 * activation_bytes.MASTER


def estimate_batch_making_memory(
    model: DecoderConfig,
    training: Training,
    workers: int,
    rows: SampledRows,
    lora: LoRA | None = None,
    others: Sequence[ModelBeside] = (),
    on_cpu: bool = False,
) -> Memory:
    """Return the peak memory of a worker that makes a micro-batch of completions."""
    size = training.precision.bytes
    held = hold_model(model, training, workers, ModelRole.of(training, lora))
    mine = held.count_gathered(size).whole
    weights = held.weights
    optimizer = held.optimizer
    gathered = mine
    restored = activation_bytes.estimate_restored_weight(model, training, lora)
    restored += activation_bytes.estimate_restored_head(model, training, lora)
    copies = 2 if rows.scaled or model.logit_cap is not None else 1
    reads = [restored + estimate_reading(model, training, rows.tokens, rows.places, copies)]
    for beside in others:
        other = hold_model(beside.model, training, workers, ModelRole(beside.optimizer))
        weights = weights + other.weights
        optimizer = optimizer + other.optimizer
        read = other.count_gathered(size)
        once = training.parallel.reshard == "step"
        gathered += read.whole if once else read.root + 2 * read.layer
        reads.append(estimate_reading(beside.model, training, rows.tokens, rows.places, copies))
    cache = 0.0
    moment = max(reads)
    if rows.sampled_here:
        held_keys, drawing = _estimate_sampling(model, size, rows, on_cpu)
        if held_keys + drawing + restored > moment:
            cache = held_keys
            moment = drawing + restored
    return Memory(
        weights=weights,
        optimizer=optimizer,
        gathered=gathered if held.sharded or training.precision.casts else 0.0,
        activations=cache,
        fleeting=moment,
    )


def _estimate_sampling(
    model: DecoderConfig, size: int, rows: SampledRows, on_cpu: bool
) -> tuple[float, float]:
    """Return the bytes of the keys and values of all completions, and temporary bytes."""
    of_a_row = estimate_cache_memory(model, rows.length, size, windows=2)
    drawn = rows.rows * model.outputs * (size + (DRAWN_ON_CPU if on_cpu else DRAWN))
    copied = rows.prompts * of_a_row if rows.prompts < rows.rows else 0.0
    return rows.rows * of_a_row, max(float(drawn), copied)
