"""Checks whether a run folder has enough free disk space for the run."""

import logging
import math
import shutil
from collections.abc import Mapping
from pathlib import Path

from trainrig import storage
from trainrig.errors import ConfigError
from trainrig.models.architecture.decoder_config import parameter_shapes
from trainrig.optim.named_groups import count_state_bytes
from trainrig.report import format_short
from trainrig.train.job import TrainingJob

log = logging.getLogger(__name__)
WEIGHT = 4  # bytes per weight in a checkpoint: float32


def check_disk_space(job: TrainingJob) -> None:
    """Raise ConfigError if the run folder's disk has no space for one checkpoint.

    Log a warning if one checkpoint fits, but not as many as the run keeps. A run folder in a bucket
    is not checked.
    """
    if job.folder.startswith(storage.S3):
        return
    shapes = _list_saved_shapes(job)
    training = job.training
    parameters = sum(map(math.prod, shapes.values()))
    needed = WEIGHT * parameters + count_state_bytes(shapes, training.optimizer, training.groups)
    for other in job.trained.values():
        other_shapes = parameter_shapes(other.model)
        count = sum(map(math.prod, other_shapes.values()))
        parameters += count
        needed += WEIGHT * count + count_state_bytes(other_shapes, other.optimizer)
    free = _measure_free_bytes(job.folder)
    # The oldest checkpoint is removed only once the newest is complete.
    kept = job.training.checkpoints.keep + 1
    what = (
        f"{job.folder}: {format_short(free)}B free; a checkpoint of {format_short(parameters)} "
        f"parameters takes {format_short(needed)}B ({needed / parameters:.3g} bytes each)"
    )
    if needed > free:
        raise ConfigError(f"{what}; free some, or choose another `output`")
    if kept * needed > free + _sum_bytes(f"{job.folder}/checkpoints"):
        log.warning("%s, and up to %d exist at a time: the disk may become full", what, kept)


def _list_saved_shapes(job: TrainingJob) -> Mapping[str, tuple[int, ...]]:
    """Return the shapes of the saved parameters by name: the model's, or the adapter's alone."""
    if job.adapter is None:
        return parameter_shapes(job.model)
    # Imported here, as it loads torch, which takes seconds.
    from trainrig.models.lora import list_adapter_shapes

    found = list_adapter_shapes(job.model, job.adapter.lora)
    return {name: tuple(shape) for name, shape in found.items()}


def _measure_free_bytes(folder: str) -> int:
    """Return the free bytes of the disk that holds `folder`, which need not exist yet."""
    path = Path(folder)
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free


def _sum_bytes(folder: str) -> int:
    return sum(storage.measure_size(path) for path in storage.list_files(folder))
