"""The memory of a device that makes batches of rollouts and trains on them, as `check` says it."""

from collections.abc import Sequence
from dataclasses import replace

from trainrig.estimate.activations import HEAD_BLOCK, MASTER, estimate_at_head
from trainrig.estimate.device_choice import DeviceChoice
from trainrig.estimate.held_parameters import EndParts
from trainrig.estimate.memory import HeldParameters, Memory, TuningStep
from trainrig.estimate.tuning.described import TuningFacts, describe_tuning
from trainrig.estimate.tuning.models_beside import (
    NOT_GATHERED,
    ModelBeside,
    estimate_trained_beside,
    hold_beside,
)
from trainrig.estimate.tuning.sampling import SampledRows, estimate_batch_making_memory
from trainrig.estimate.worker_memory import estimate_worker_memory
from trainrig.models.decoder_config import DecoderConfig, count_parameters
from trainrig.objectives import OnPolicyDistillation
from trainrig.posttrain.rewards.judge import JudgeModel
from trainrig.posttrain.rewards.reward_model import RewardModel
from trainrig.posttrain.rollouts.run_file import ReinforcementLearning
from trainrig.train import checkpoint
from trainrig.train.job import TrainingJob
from trainrig.train.run_file.training import Training


def describe_rollout_memory(
    run: ReinforcementLearning, job: TrainingJob, longest: int, machine: DeviceChoice
) -> TuningFacts:
    """What a device needs for `job`, whose longest prompt has so many tokens: the larger of what
    the making of a batch takes and of what a step on it does."""
    rows = describe_rows(run, longest)
    asked = find_reward_models(run) if rows.sampled_here else []
    facts: TuningFacts = {
        "largest_micro_batch": f"{rows.rows} rows of {rows.length} places, logits of {rows.places}"
    }
    left_out = []
    if asked:
        facts["parameters_of_reward_models"] = sum(count_parameters(each).total for each in asked)
        left_out.append("passes of reward models, whose weights are counted")
    if not rows.sampled_here:
        left_out.append("devices of actors, which sample and ask reward models")

    def find(training: Training, workers: int, on_cpu: bool) -> Memory:
        return max(
            estimate_making(run, job, rows, asked, training, workers, on_cpu),
            estimate_step(run, job, rows, asked, training, workers),
            key=lambda each: each.total,
        )

    told = job.model, job.training, run.workers, machine, find, rows.tokens, run.lora
    return facts | describe_tuning(*told, left_out)


def describe_rows(run: ReinforcementLearning, longest: int) -> SampledRows:
    """The largest micro-batch of `run`, whose longest prompt has so many tokens."""
    wanted = run.rollouts
    return SampledRows(
        rows=wanted.micro_batch,
        prompts=wanted.micro_batch // wanted.samples,
        prompt_tokens=longest,
        new_tokens=wanted.maximum_tokens,
        scaled=wanted.temperature != 1,
        sampled_here=wanted.actors == 0,
    )


def find_reward_models(run: ReinforcementLearning) -> list[DecoderConfig]:
    """Those that are asked what completions are worth: whole ones, in float32, wherever completions
    are sampled."""
    models = [each for each in run.rewards if isinstance(each, RewardModel | JudgeModel)]
    return [checkpoint.describe(checkpoint.resolve(each.checkpoint))[0] for each in models]


def estimate_making(
    run: ReinforcementLearning,
    job: TrainingJob,
    rows: SampledRows,
    asked: Sequence[DecoderConfig],
    training: Training,
    workers: int,
    on_cpu: bool,
) -> Memory:
    """Of one of `workers` that samples and reads a batch, at the peak; `asked`: reward models."""
    others = _list_others(run, job)
    made = estimate_batch_making_memory(
        job.model, training, workers, rows, run.lora, others, on_cpu
    )
    return replace(made, weights=made.weights + _count_bytes(asked))


def estimate_step(
    run: ReinforcementLearning,
    job: TrainingJob,
    rows: SampledRows,
    asked: Sequence[DecoderConfig],
    training: Training,
    workers: int,
) -> Memory:
    """Of one of `workers` that trains on a batch, at the peak; `asked`: reward models."""
    size = training.precision.bytes
    of_asked = _count_bytes(asked)
    beside = HeldParameters(0, 0, EndParts(0), 0, 0, of_asked, 0.0, 0.0, False, NOT_GATHERED)
    places: int | None = rows.places
    activations = 0.0
    for each in _list_others(run, job):
        beside = beside.hold_beside(hold_beside(each, training, workers), size)
        if each.optimizer is not None:
            activations += estimate_trained_beside(each, training, rows.tokens)
        elif each.in_steps:  # a block of its logits, beside one of the student's
            places = None
            activations += estimate_at_head(job.model, size, rows.places, None, run.lora)
            activations += size * min(rows.places * each.model.outputs, HEAD_BLOCK)
    tuning = TuningStep(run.lora, places, beside, activations)
    count = run.rollouts.prompts * run.rollouts.samples
    return estimate_worker_memory(
        job.model, training, workers, count, rows.rows, rows.length, tuning=tuning
    )


def _list_others(run: ReinforcementLearning, job: TrainingJob) -> list[ModelBeside]:
    """The models beside the policy: a reference, or a teacher, and a critic."""
    whole = isinstance(run.objective, OnPolicyDistillation) and run.objective.estimator == "full"
    return [
        *(ModelBeside(each.model, in_steps=whole) for each in job.frozen.values()),
        *(ModelBeside(each.model, each.optimizer) for each in job.trained.values()),
    ]


def _count_bytes(asked: Sequence[DecoderConfig]) -> float:
    return float(MASTER * sum(count_parameters(each).total for each in asked))
