"""What `trainrig check` says of `posttrain`: sizes, rows, memory and cost."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from trainrig.estimate.activation_bytes import RowMasks, estimate_reading
from trainrig.estimate.cost_estimate import DeviceChoice
from trainrig.estimate.held_parameters import ModelBeside, hold_beside
from trainrig.estimate.model_parallel_memory import estimate_worker_memory
from trainrig.estimate.step_memory import Memory, TuningStep
from trainrig.estimate.training_check import (
    TuningFacts,
    describe_adapters,
    describe_cost,
    describe_sizes,
    describe_tuning,
)
from trainrig.flops import count_token_flops
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.encoder_configs import EncoderDecoderConfig
from trainrig.posttrain.tuning.fine_tuning import assume_model, find_models
from trainrig.posttrain.tuning.largest_rows import LargestRows, find_largest
from trainrig.posttrain.tuning.tuning_run_file import FineTuning
from trainrig.train.run_file.training_settings import Training


def estimate_tuning(
    run: FineTuning, machine: DeviceChoice, assumed: DecoderConfig | None = None
) -> dict[str, Any]:
    """Return the model size, trained parameters, row counts, memory and cost of `run`.

    They are estimated for a device of `machine`. `assumed` is the model to estimate for while the
    checkpoint does not exist, or is a Hugging Face folder that is not imported yet; without it,
    the result is empty then. Raises InputError for settings that do not fit together.
    """
    found = find_models(run)
    if found is not None:
        model, frozen, counted = found
        beside = [reference.model for reference in frozen.values()]
    elif assumed is not None:
        model, counted = assume_model(run, assumed), {}
        beside = [model] if run.objective.reference_use == "beside" else []
    else:
        return {}
    facts = describe_sizes(model) | counted | describe_adapters(run.lora, model)
    return facts | describe_needs(run, model, beside, machine)


def describe_needs(
    run: FineTuning, model: DecoderConfig, beside: Sequence[DecoderConfig], machine: DeviceChoice
) -> TuningFacts:
    """Return facts about the device memory and the cost of tuning `model`, for `trainrig check`.

    `beside` are the frozen models that read each batch as well.
    """
    rows = find_largest(run, model)
    facts: TuningFacts = {"largest_micro_batch": str(rows)}
    find = partial(estimate_tuning_memory, run, model, beside, rows)
    left_out = []
    if run.objective.needs_teacher:
        left_out.append(
            "the teacher's probabilities of each token, and their comparison with the student's"
        )
    arguments = model, run.training, run.workers, machine, find, rows.tokens, run.lora
    facts |= describe_tuning(*arguments, left_out)
    if isinstance(model, EncoderDecoderConfig):
        return facts
    flops = count_tuning_flops(run, model, beside, rows)
    return facts | describe_cost(flops, run.training, run.workers, machine)


def count_tuning_flops(
    run: FineTuning, model: DecoderConfig, beside: Sequence[DecoderConfig], rows: LargestRows
) -> float:
    """Return the operations of all steps of `run`, as if all micro-batches had the shape `rows`.

    Below adapters, a backward pass takes one product for each frozen matrix: the gradient of its
    input. The adapters' own products are left out: about 1% at rank 16.
    """
    predicted = 1.0 if rows.places is None else rows.places / rows.tokens
    token = count_token_flops(model, rows.length, predicted=predicted)
    frozen = token.projections + token.head if run.lora else 0.0
    trained = token.training - frozen
    reading = sum(
        count_token_flops(one, rows.length, predicted=predicted).forward for one in beside
    )
    micro_batches = run.training.steps * run.batches.global_batch // run.batches.micro_batch
    return micro_batches * rows.tokens * (trained + reading)


def estimate_tuning_memory(
    run: FineTuning,
    model: DecoderConfig,
    beside: Sequence[DecoderConfig],
    rows: LargestRows,
    training: Training,
    workers: int,
    on_cpu: bool,
) -> Memory:
    """Estimate the memory of one of `workers` with the parallel layout of `training`."""
    tuning = TuningStep(run.lora, rows.places)
    for reference in beside:  # one at most
        held = hold_beside(ModelBeside(reference), training, workers)
        places = rows.places or 0
        reading = estimate_reading(reference, training, rows.tokens, places)
        tuning = TuningStep(run.lora, rows.places, held, reading)
    return estimate_worker_memory(
        model,
        training,
        workers,
        run.batches.global_batch * rows.rows // run.batches.micro_batch,
        rows.rows,
        rows.length,
        RowMasks(rows.documents, rows.branches, on_cpu),
        tuning,
    )
