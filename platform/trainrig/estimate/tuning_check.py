"""What `trainrig check` says of `posttrain`: sizes of models, rows, and memory of a device."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from trainrig.estimate.activation_bytes import RowMasks, estimate_reading
from trainrig.estimate.held_parameters import ModelBeside, hold_beside
from trainrig.estimate.run_cost import DeviceChoice
from trainrig.estimate.step_memory import Memory, TuningStep
from trainrig.estimate.training_check import (
    TuningFacts,
    describe_adapters,
    describe_sizes,
    describe_tuning,
)
from trainrig.estimate.worker_memory import estimate_worker_memory
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.posttrain.tuning.fine_tuning import find_models
from trainrig.posttrain.tuning.largest_rows import LargestRows, find_largest
from trainrig.posttrain.tuning.tuning_run_file import FineTuning
from trainrig.train.run_file.training_settings import Training
from trainrig.train.training_job import FrozenModel


def estimate_tuning(run: FineTuning, machine: DeviceChoice) -> dict[str, Any]:
    """Return the model size, trained parameters, row counts and device memory of `run`.

    Memory is estimated for a device of `machine`. The result is empty while the model does not
    exist, or is a Hugging Face folder that is not imported yet. Raises InputError for settings that
    do not fit together.
    """
    found = find_models(run)
    if found is None:
        return {}
    model, frozen, counted = found
    facts = describe_sizes(model) | counted | describe_adapters(run.lora, model)
    return facts | describe_tuning_memory(run, model, frozen, machine)


def describe_tuning_memory(
    run: FineTuning,
    model: DecoderConfig,
    frozen: Mapping[str, FrozenModel],
    machine: DeviceChoice,
) -> TuningFacts:
    """Return facts about the memory that a device needs to tune `model`, with `frozen` models.

    The facts are what `trainrig check` prints.
    """
    rows = find_largest(run, model)
    facts: TuningFacts = {"largest_micro_batch": str(rows)}
    references = [reference.model for reference in frozen.values()]
    find = partial(estimate_tuning_memory, run, model, references, rows)
    left_out = []
    if run.objective.needs_teacher:
        left_out.append(
            "the teacher's probabilities of each token, and their comparison with the student's"
        )
    arguments = model, run.training, run.workers, machine, find, rows.tokens, run.lora
    return facts | describe_tuning(*arguments, left_out)


def estimate_tuning_memory(
    run: FineTuning,
    model: DecoderConfig,
    frozen: list[DecoderConfig],
    rows: LargestRows,
    training: Training,
    workers: int,
    on_cpu: bool,
) -> Memory:
    """Estimate the memory of one of `workers` with the parallel layout of `training`."""
    tuning = TuningStep(run.lora, rows.places)
    for reference in frozen:  # one at most
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
