"""Whether a run's folder has room for what the run will write."""

import logging
import shutil
from pathlib import Path

from trainrig import storage
from trainrig.errors import ConfigError
from trainrig.models.decoder_config import count_parameters
from trainrig.report import short
from trainrig.train.job import TrainingJob

log = logging.getLogger(__name__)
BYTES = 12  # of a parameter in a checkpoint: itself and two moments of Adam, float32 each


def check_disk_space(job: TrainingJob) -> None:
    """Raise ConfigError if the run folder's disk has no room for one checkpoint; a bucket has.

    Room for one alone, of a run that keeps several, is worth a warning.
    """
    if job.folder.startswith(storage.S3):
        return
    parameters = count_parameters(job.model).total
    needed, free = BYTES * parameters, _free_bytes(job.folder)
    kept = job.training.checkpoints.keep + 1  # the newest is whole before the oldest goes
    what = (
        f"{job.folder}: {short(free)}B free; a checkpoint of {short(parameters)} parameters takes "
        f"{short(needed)}B ({BYTES} bytes each)"
    )
    if needed > free:
        raise ConfigError(f"{what}; free some, or choose another `output`")
    if kept * needed > free + _bytes_of(f"{job.folder}/checkpoints"):
        log.warning("%s, and up to %d are there at a time: it may become full", what, kept)


def _free_bytes(folder: str) -> int:
    """Of the disk that `folder` is on, or will be."""
    path = Path(folder)
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free


def _bytes_of(folder: str) -> int:
    return sum(storage.size(path) for path in storage.list_files(folder))
