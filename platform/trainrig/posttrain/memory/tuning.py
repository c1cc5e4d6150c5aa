"""The memory of a device that tunes by rows, as `check` says it."""

from collections.abc import Mapping
from functools import partial

from trainrig.estimate.device_choice import DeviceChoice
from trainrig.estimate.masks import RowMasks
from trainrig.estimate.memory import Memory, TuningStep
from trainrig.estimate.tuning.described import TuningFacts, describe_tuning
from trainrig.estimate.tuning.models_beside import ModelBeside, estimate_reading, hold_beside
from trainrig.estimate.worker_memory import estimate_worker_memory
from trainrig.models.decoder_config import DecoderConfig
from trainrig.objectives import Distillation
from trainrig.posttrain.memory.rows import LargestRows, find_largest
from trainrig.posttrain.run_file import FineTuning
from trainrig.train.job import FrozenModel
from trainrig.train.run_file.training import Training


def describe_tuning_memory(
    run: FineTuning,
    model: DecoderConfig,
    frozen: Mapping[str, FrozenModel],
    machine: DeviceChoice,
) -> TuningFacts:
    """What a device needs to tune `model` as `run` says, beside `frozen` models."""
    rows = find_largest(run, model)
    facts: TuningFacts = {"largest_micro_batch": str(rows)}
    references = [each.model for each in frozen.values()]
    find = partial(estimate_tuning_memory, run, model, references, rows)
    left_out = []
    if isinstance(run.objective, Distillation):
        left_out.append("what the teacher expects of each token, and its comparison")
    told = model, run.training, run.workers, machine, find, rows.tokens, run.lora
    return facts | describe_tuning(*told, left_out)


def estimate_tuning_memory(
    run: FineTuning,
    model: DecoderConfig,
    frozen: list[DecoderConfig],
    rows: LargestRows,
    training: Training,
    workers: int,
    on_cpu: bool,
) -> Memory:
    """Of one of `workers`, laid out as `training` says."""
    tuning = TuningStep(run.lora, rows.places)
    for each in frozen:  # one at most
        held, places = hold_beside(ModelBeside(each), training, workers), rows.places or 0
        reading = estimate_reading(each, training, rows.tokens, places)
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
