"""Finds checkpoints and reads their metadata without torch."""

import json
import logging
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from trainrig import storage
from trainrig.config import build
from trainrig.errors import ConfigError, DataError
from trainrig.manifest import describe_table_difference, digest
from trainrig.models import find_model_class
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.tokens.batches import DataHistory
from trainrig.tokens.special_tokens import TokenizerFiles
from trainrig.train.checkpoint.chunks import DamagedCheckpoint, read_file
from trainrig.train.checkpoint.manifest import (
    BROUGHT,
    STATE,
    TOKENIZER,
    CheckpointManifest,
    find_damage,
    find_newest_valid,
    list_committed,
)
from trainrig.train.evaluations.settings import BestBy
from trainrig.train.job import TrainingJob
from trainrig.train.run.run_folder import RunFolder
from trainrig.train.run.scores.records import find_best

BEST = "best"
WEIGHTS = ("model.", "adapter.")  # prefixes of the names of a model's own tensors
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class OpenedCheckpoint:
    """Checkpoint whose manifest and small files were read once and verified."""

    path: str
    manifest: CheckpointManifest
    entries: Mapping[str, Any]  # everything besides tensors and the tokenizer
    tokenizer: str  # content of tokenizer.json

    @classmethod
    def read(cls, path: str) -> Self:
        """Read the checkpoint at `path`. Raise DamagedCheckpoint if it is not valid."""
        manifest = CheckpointManifest.read(path)
        entries = json.loads(_read_small(path, STATE, manifest))
        return cls(path, manifest, entries, _read_small(path, TOKENIZER, manifest).decode())

    @property
    def config(self) -> DecoderConfig:
        """Configuration of its model, without further prediction heads.

        Further heads are useful only in the training run that made them.
        """
        found = read_settings(self.entries, storage.join(self.path, STATE))
        return found.without_further_heads

    def read_beside(self) -> TokenizerFiles:
        """Read its tokenizer and the files that came with it. May raise DamagedCheckpoint."""
        beside: dict[str, str] = {}
        if BROUGHT in self.manifest.files:
            beside = json.loads(_read_small(self.path, BROUGHT, self.manifest))
        return TokenizerFiles(self.tokenizer, beside, storage.join(self.path, TOKENIZER))


def describe(checkpoint: str) -> tuple[DecoderConfig, str]:
    """Return the model configuration of `checkpoint`, and the content of its tokenizer.json."""
    opened = OpenedCheckpoint.read(checkpoint)
    return opened.config, opened.tokenizer


def read_settings(entries: Mapping[str, Any], where: str) -> DecoderConfig:
    """Parse the model configuration in a checkpoint's `entries`; errors name the file `where`."""
    given = entries["model"]
    return build(find_model_class(given), given, where)


def read_tokenizer_files(checkpoint: str) -> TokenizerFiles:
    """Read the tokenizer of `checkpoint` with the files that came with it."""
    return OpenedCheckpoint.read(checkpoint).read_beside()


def compute_content_key(checkpoint: str) -> str:
    """Return a fingerprint of the files of `checkpoint`, independent of the attempt."""
    files = CheckpointManifest.read(checkpoint).files
    return digest({name: list(chunks.sha256) for name, chunks in files.items()})


def resolve(path: str, verify: bool = True) -> str:
    """Return the folder of the newest valid checkpoint at or below `path`.

    `path` may be a checkpoint, a step, a folder of checkpoints or a run folder; RUN/best is the
    run's best checkpoint by score. Raises DataError if there is none.

    With `verify`, the small files and the weights are verified, not the optimizer state, which
    users of a model do not read. Without it, only the small files are: for callers that verify what
    they read.
    """
    path = path.rstrip("/")
    # `path` is the checkpoint itself, wherever it lies
    if storage.exists(storage.join(path, STATE)):
        if damage := find_damage(path, verify, WEIGHTS):
            raise DataError(
                f"{path}: the checkpoint is damaged ({damage}); name its run folder instead"
            )
        return path
    if path == BEST or path.endswith(f"/{BEST}"):
        return _find_best(path.removesuffix(BEST).rstrip("/") or ".", verify)
    run = path
    below = ""
    if inside := re.fullmatch(r"(?:(.*)/)?(checkpoints(?:/step_\d+)?)", path):
        run = "." if inside[1] is None else inside[1]
        below = storage.join(run, inside[2])
    found, damages = find_newest_valid(RunFolder(run), below, verify, kinds=WEIGHTS)
    for damage in damages:
        log.warning("skipped a damaged checkpoint: %s", damage)
    if found is None:
        why = f"; damaged: {damages[0]}" if damages else ""
        raise DataError(
            f"{path}: no valid checkpoint there{why}; name the folder of a training run"
        )
    return found.path


def _find_best(run: str, verify: bool) -> str:
    """Return the best checkpoint of the run folder `run`, by the score that its run file names.

    Raises DataError if no checkpoint is the best, or if the best one is damaged.
    """
    path = storage.join(run, "run.toml")
    if not storage.exists(path):
        raise DataError(
            f"{run}: no run.toml; `best` must follow the folder of a training run, as in RUN/best"
        )
    named = tomllib.loads(storage.read(path).decode()).get("training", {}).get("best")
    if named is None:
        raise DataError(
            f"{run}: the run file has no [training.best], so no checkpoint is the best; name the "
            "run, or one of its checkpoints"
        )
    folder = RunFolder(run)
    there = {
        (step, number): where for where, step, number in list_committed(folder, folder.checkpoints)
    }
    best = find_best(folder, build(BestBy, named, path), there)
    if best is None:
        raise DataError(
            f"{run}: none of the existing checkpoints has a score; name the run, or one of its "
            "checkpoints"
        )
    found = there[best.step, best.attempt]
    if damage := find_damage(found, verify, WEIGHTS):
        raise DataError(f"{found}: the best checkpoint is damaged ({damage})")
    return found


def check_data(checkpoint: str, batches: DataHistory) -> None:
    """Raise ConfigError unless `batches` match the data that `checkpoint` was trained on.

    Only data before its step is compared; later data may differ. The error names the difference.
    """
    check_entries(checkpoint, read_entries(checkpoint), batches)


def check_entries(checkpoint: str, entries: Mapping[str, Any], batches: DataHistory) -> None:
    """Run `check_data` for a checkpoint whose `entries` were already read."""
    if "data" not in entries:
        raise ConfigError(
            f"{checkpoint}: the checkpoint does not record its data (a run cannot resume from "
            "weights alone); use another `output`"
        )
    changed = describe_table_difference(entries["data"], batches.data_before(entries["data_step"]))
    if changed:
        raise ConfigError(
            f"{checkpoint}: the run was trained on other data than in the run file ({changed}); "
            "use that "
            "data, or another `output`; only stages after this checkpoint may change"
        )


def check_context(checkpoint: str, entries: Mapping[str, Any], job: TrainingJob) -> None:
    """Raise ConfigError unless `job` changed its positions as the run of `checkpoint` did.

    `entries` are those of the checkpoint. Only changes before its step are compared.
    """
    here = job.context_before(entries.get("data_step", 0))
    there = entries.get("context", here[:1])  # older checkpoints have no such entry
    if len(there) == len(here) == 1:  # no changes: `check_model` compares the positions
        return
    changed = describe_table_difference({"context": there}, {"context": here})
    if changed:
        raise ConfigError(
            f"{checkpoint}: the run was trained with other [[context]] stages than in the run file "
            f"({changed}); use those, or another `output`; only stages after this checkpoint may "
            "change"
        )


def read_entries(checkpoint: str) -> dict[str, Any]:
    """Read everything in `checkpoint` besides tensors and the tokenizer.

    Raises DamagedCheckpoint if the file is damaged.
    """
    return dict(json.loads(read_small(checkpoint, STATE)))


def read_small(checkpoint: str, name: str) -> bytes:
    """Read and verify the small file `name` of `checkpoint`. Raise DamagedCheckpoint if damaged."""
    return _read_small(checkpoint, name, CheckpointManifest.read(checkpoint))


def _read_small(checkpoint: str, name: str, manifest: CheckpointManifest) -> bytes:
    chunks = manifest.files.get(name)
    if chunks is None:
        raise DamagedCheckpoint(f"{storage.join(checkpoint, name)}: not in the manifest")
    return read_file(storage.join(checkpoint, name), chunks)
