"""Device memory for making and training on rollouts, as `trainrig check` reports it."""

from collections.abc import Sequence
from dataclasses import replace

from trainrig.estimate import tuned_models
from trainrig.estimate.activation_bytes import HEAD_BLOCK, MASTER, estimate_at_head
from trainrig.estimate.held_parameters import EndParts
from trainrig.estimate.run_cost import DeviceChoice
from trainrig.estimate.step_memory import HeldParameters, Memory, TuningStep
from trainrig.estimate.training_facts import TuningFacts, describe_tuning
from trainrig.estimate.worker_memory import estimate_worker_memory
from trainrig.models.architecture.decoder_config import DecoderConfig, count_parameters
from trainrig.posttrain.rewards.model_rewards import JudgeModel, RewardModel
from trainrig.posttrain.rollouts.reinforcement_run_file import ReinforcementLearning
from trainrig.train import checkpoint
from trainrig.train.run_file.training_settings import Training
from trainrig.train.training_job import TrainingJob


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


def describe_rows(run: ReinforcementLearning, longest: int) -> tuned_models.SampledRows:
    """Return the largest micro-batch of `run`, whose longest prompt has `longest` tokens."""
    wanted = run.rollouts
    return tuned_models.SampledRows(
        rows=wanted.micro_batch,
        prompts=wanted.micro_batch // wanted.samples,
        prompt_tokens=longest,
        new_tokens=wanted.maximum_tokens,
        scaled=wanted.temperature != 1,
        sampled_here=wanted.actors == 0,
    )


def find_reward_models(run: ReinforcementLearning) -> list[DecoderConfig]:
    """Return the shapes of the reward models and judges of `run`.

    Every process that samples completions holds all of them unsharded, in float32.
    """
    models = [part for part in run.rewards if isinstance(part, RewardModel | JudgeModel)]
    return [checkpoint.describe(checkpoint.resolve(part.checkpoint))[0] for part in models]


def estimate_making(
    run: ReinforcementLearning,
    job: TrainingJob,
    rows: tuned_models.SampledRows,
    reward_models: Sequence[DecoderConfig],
    training: Training,
    workers: int,
    on_cpu: bool,
) -> Memory:
    """Estimate the peak memory of one of `workers` that makes a batch.

    `reward_models` are the reward models that it holds.
    """
    others = _list_others(run, job)
    made = tuned_models.estimate_batch_making_memory(
        job.model, training, workers, rows, run.lora, others, on_cpu
    )
    return replace(made, weights=made.weights + _count_bytes(reward_models))


def estimate_step(
    run: ReinforcementLearning,
    job: TrainingJob,
    rows: tuned_models.SampledRows,
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
        0, 0, EndParts(0), 0, 0, reward_model_bytes, 0.0, 0.0, False, tuned_models.NOT_GATHERED
    )
    places: int | None = rows.places
    activations = 0.0
    for other in _list_others(run, job):
        beside = beside.hold_beside(tuned_models.hold_beside(other, training, workers), size)
        if other.optimizer is not None:
            activations += tuned_models.estimate_trained_beside(other, training, rows.tokens)
        elif other.in_steps:  # a block of the teacher's logits besides one of the student's
            places = None
            activations += estimate_at_head(job.model, size, rows.places, None, run.lora)
            activations += size * min(rows.places * other.model.outputs, HEAD_BLOCK)
    tuning = TuningStep(run.lora, places, beside, activations)
    count = run.rollouts.prompts * run.rollouts.samples
    return estimate_worker_memory(
        job.model, training, workers, count, rows.rows, rows.length, tuning=tuning
    )


def _list_others(run: ReinforcementLearning, job: TrainingJob) -> list[tuned_models.ModelBeside]:
    """Return the models held besides the policy: a reference or a teacher, and a critic."""
    whole = run.objective.needs_teacher and not run.objective.credits_teacher
    return [
        *(tuned_models.ModelBeside(frozen.model, in_steps=whole) for frozen in job.frozen.values()),
        *(
            tuned_models.ModelBeside(trained.model, trained.optimizer)
            for trained in job.trained.values()
        ),
    ]


def _count_bytes(reward_models: Sequence[DecoderConfig]) -> float:
    return float(MASTER * sum(count_parameters(config).total for config in reward_models))
