"""Search for the run file of a traced run, and for the token shards that it trains on."""

import os
from pathlib import Path

from trainrig import config, manifest, storage
from trainrig.errors import ConfigError, DataError
from trainrig.posttrain.run_file import FineTuning
from trainrig.train.run_file.run_files import Pretraining

RUN_FILE = "run.toml"
Traced = Pretraining | FineTuning
# The field of each verb that names its shards' folder, and the stage that made them.
_FIELD_OF = {
    Pretraining.verb: ("tokens", "tokenize"),
    FineTuning.verb: ("conversations", "conversations"),
}


def read_traced_run_file(path: str) -> tuple[Traced, str | None]:
    """Return the run file at `path` and None, or the run file of a run folder and the folder."""
    folder = path if not path.endswith(".toml") else None
    file = storage.join(path, RUN_FILE) if folder else path
    if folder and not storage.exists(file):
        raise ConfigError(f"{path}: no {RUN_FILE} in it; name a run file or a run folder")
    found = config.parse(config.read_text(file), file).get("stage")
    if found not in (Pretraining.verb, FineTuning.verb):
        raise ConfigError(
            f"{file}: is for `{found}`; only steps of `{Pretraining.verb}` and of "
            f"`{FineTuning.verb}` can be traced"
        )
    run: Traced
    if found == Pretraining.verb:
        run = config.load(Pretraining, file)
    else:
        run = config.load(FineTuning, file)
    field, stage = _FIELD_OF[run.verb]
    if folder:
        run = _find_moved(folder, run, field)
    there = find_shards(run)
    if not storage.list_files(there):
        raise DataError(
            f"{file}: {field} = {there} does not exist, seen from {Path.cwd()}; run the "
            "command where the run was started, or restore the folder"
        )
    manifest.read_input(there, stage)
    return run, folder


def _find_moved(folder: str, run: Traced, field: str) -> Traced:
    """Return `run` with the shards' folder next to the run folder, if both were moved there.

    An older trainrig recorded the paths as the user wrote them, which gives the same case.
    """
    tokens = find_shards(run)
    there = storage.exists(storage.join(tokens, manifest.MANIFEST))
    on_disk = not any(path.startswith(storage.S3) for path in (folder, tokens, run.output))
    same_start = Path(tokens).is_absolute() == Path(run.output).is_absolute()
    if not on_disk or not same_start or (there and Path(tokens).is_absolute()):
        return run
    beside = os.path.normpath(os.path.join(folder, os.path.relpath(tokens, run.output)))  # noqa: PTH118
    found = storage.exists(storage.join(beside, manifest.MANIFEST))
    return run.model_copy(update={field: beside}) if found else run


def find_shards(run: Traced) -> str:
    """Return the folder of token shards that `run` trains on."""
    return run.tokens if isinstance(run, Pretraining) else run.conversations
