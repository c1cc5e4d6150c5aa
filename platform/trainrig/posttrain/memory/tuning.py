"""Device memory of a tuning run on rows, as `trainrig check` reports it."""

from collections.abc import Mapping
from functools import partial

from trainrig.estimate.activation_bytes import RowMasks
from trainrig.estimate.run_cost import DeviceChoice
from trainrig.estimate.step_memory import (
    Memory,
    TuningStep,
)
from trainrig.estimate.training_facts import (
    TuningFacts,
    describe_tuning,
)
from trainrig.estimate.tuned_models import (
    ModelBeside,
    estimate_reading,
    hold_beside,
)
from trainrig.estimate.worker_memory import estimate_worker_memory
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.objectives import Distillation
from trainrig.posttrain.memory.rows import LargestRows, find_largest
from trainrig.posttrain.run_file import FineTuning
from trainrig.train.run_file.training_settings import Training
from trainrig.train.training_job import FrozenModel


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
    if isinstance(run.objective, Distillation):
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
