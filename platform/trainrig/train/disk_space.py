"""Checks whether a run folder has enough free disk space for the run."""

import logging
import math
import shutil
from collections.abc import Mapping
from pathlib import Path

from trainrig import storage
from trainrig.errors import ConfigError
from trainrig.models.decoder_config import parameter_shapes
from trainrig.optim.named_groups import count_state_bytes
from trainrig.report import format_short
from trainrig.train.job import TrainingJob

log = logging.getLogger(__name__)
WEIGHT = 4  # bytes of a weight in a checkpoint: float32


def check_disk_space(job: TrainingJob) -> None:
    """Raise ConfigError if the run folder's disk has no room for one checkpoint; a bucket has.

    Room for one alone, of a run that keeps several, is worth a warning.
    """
    if job.folder.startswith(storage.S3):
        return
    shapes, training = _list_saved_shapes(job), job.training
    parameters = sum(map(math.prod, shapes.values()))
    needed = WEIGHT * parameters + count_state_bytes(shapes, training.optimizer, training.groups)
    for each in job.trained.values():
        beside = parameter_shapes(each.model)
        count = sum(map(math.prod, beside.values()))
        parameters += count
        needed += WEIGHT * count + count_state_bytes(beside, each.optimizer)
    free = _measure_free_bytes(job.folder)
    kept = job.training.checkpoints.keep + 1  # the newest is whole before the oldest goes
    what = (
        f"{job.folder}: {format_short(free)}B free; a checkpoint of {format_short(parameters)} "
        f"parameters takes {format_short(needed)}B ({needed / parameters:.3g} bytes each)"
    )
    if needed > free:
        raise ConfigError(f"{what}; free some, or choose another `output`")
    if kept * needed > free + _sum_bytes(f"{job.folder}/checkpoints"):
        log.warning("%s, and up to %d are there at a time: it may become full", what, kept)


def _list_saved_shapes(job: TrainingJob) -> Mapping[str, tuple[int, ...]]:
    """Of the model's parameters, or of the adapter's alone, by name."""
    if job.adapter is None:
        return parameter_shapes(job.model)
    from trainrig.models.lora.layers import list_adapter_shapes  # torch takes seconds

    found = list_adapter_shapes(job.model, job.adapter.lora)
    return {name: tuple(shape) for name, shape in found.items()}


def _measure_free_bytes(folder: str) -> int:
    """Of the disk that `folder` is on, or will be."""
    path = Path(folder)
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free


def _sum_bytes(folder: str) -> int:
    return sum(storage.measure_size(path) for path in storage.list_files(folder))
