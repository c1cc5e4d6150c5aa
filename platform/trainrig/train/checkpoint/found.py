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
from trainrig.models.decoder_config import DecoderConfig
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
WEIGHTS = ("model.", "adapter.")  # what the names of a model's own tensors begin with
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class OpenedCheckpoint:
    """A checkpoint whose manifest and small files were read, each once, and checked."""

    path: str
    manifest: CheckpointManifest
    entries: Mapping[str, Any]  # all that it holds besides tensors and the tokenizer
    tokenizer: str  # the text of its tokenizer.json

    @classmethod
    def read(cls, path: str) -> Self:
        """That at `path`. Raises DamagedCheckpoint."""
        manifest = CheckpointManifest.read(path)
        entries = json.loads(_read_small(path, STATE, manifest))
        return cls(path, manifest, entries, _read_small(path, TOKENIZER, manifest).decode())

    @property
    def config(self) -> DecoderConfig:
        """The sizes of its model, with the head of the next token alone: others are of use in the
        training that they came from."""
        found = read_settings(self.entries, storage.join(self.path, STATE))
        return found.without_further_heads

    def read_beside(self) -> TokenizerFiles:
        """Its tokenizer, with the files that that was brought with. Raises DamagedCheckpoint."""
        beside: dict[str, str] = {}
        if BROUGHT in self.manifest.files:
            beside = json.loads(_read_small(self.path, BROUGHT, self.manifest))
        return TokenizerFiles(self.tokenizer, beside, storage.join(self.path, TOKENIZER))


def describe(checkpoint: str) -> tuple[DecoderConfig, str]:
    """The sizes of the model at `checkpoint`, and the text of its tokenizer.json."""
    opened = OpenedCheckpoint.read(checkpoint)
    return opened.config, opened.tokenizer


def read_settings(entries: Mapping[str, Any], where: str) -> DecoderConfig:
    """The sizes of the model of a checkpoint's `entries`, which were read at `where`."""
    given = entries["model"]
    return build(find_model_class(given), given, where)


def read_tokenizer_files(checkpoint: str) -> TokenizerFiles:
    """The tokenizer of the model at `checkpoint`, with the files that it was brought with."""
    return OpenedCheckpoint.read(checkpoint).read_beside()


def compute_content_key(checkpoint: str) -> str:
    """A fingerprint of what `checkpoint` holds, whichever attempt wrote it."""
    files = CheckpointManifest.read(checkpoint).files
    return digest({name: list(chunks.sha256) for name, chunks in files.items()})


def resolve(path: str, verify: bool = True) -> str:
    """The folder of the newest whole checkpoint at or below `path`; of RUN/best, the run's best
    one. Raises DataError.

    Of the tensors, the weights alone are read and checked, as whoever uses a model reads nothing
    else; without `verify` not even these, for whoever checks what it reads.
    """
    path = path.rstrip("/")
    if storage.exists(storage.join(path, STATE)):  # the files themselves, wherever they lie
        if damage := find_damage(path, verify, WEIGHTS):
            raise DataError(f"{path}: a damaged checkpoint ({damage}); name its run folder instead")
        return path
    if path == BEST or path.endswith(f"/{BEST}"):
        return _find_best(path.removesuffix(BEST).rstrip("/") or ".", verify)
    run, below = path, ""
    if inside := re.fullmatch(r"(?:(.*)/)?(checkpoints(?:/step_\d+)?)", path):
        run = "." if inside[1] is None else inside[1]
        below = storage.join(run, inside[2])
    found, damages = find_newest_valid(RunFolder(run), below, verify, kinds=WEIGHTS)
    for damage in damages:
        log.warning("passed over a damaged checkpoint: %s", damage)
    if found is None:
        why = f"; damaged: {damages[0]}" if damages else ""
        raise DataError(
            f"{path}: no whole checkpoint there{why}; name the folder of a training run"
        )
    return found.path


def _find_best(run: str, verify: bool) -> str:
    """The best checkpoint of the run in the folder `run`, by the score that its run file names.
    Raises DataError."""
    path = storage.join(run, "run.toml")
    if not storage.exists(path):
        raise DataError(f"{run}: no run.toml; `best` stands behind the folder of a training run")
    named = tomllib.loads(storage.read(path).decode()).get("training", {}).get("best")
    if named is None:
        raise DataError(
            f"{run}: its run file has no [training.best], so no checkpoint is the best; name the "
            "run, or one of its checkpoints"
        )
    folder = RunFolder(run)
    there = {
        (step, number): where for where, step, number in list_committed(folder, folder.checkpoints)
    }
    best = find_best(folder, build(BestBy, named, path), there)
    if best is None:
        raise DataError(f"{run}: no checkpoint of it that is still there has been scored")
    found = there[best.step, best.attempt]
    if damage := find_damage(found, verify, WEIGHTS):
        raise DataError(f"{found}: the best checkpoint is damaged ({damage})")
    return found


def check_data(checkpoint: str, batches: DataHistory) -> None:
    """Raise ConfigError, with the difference, unless `batches` before the step of `checkpoint` are
    those that it was trained on. What comes after may be another."""
    check_entries(checkpoint, read_entries(checkpoint), batches)


def check_entries(checkpoint: str, entries: Mapping[str, Any], batches: DataHistory) -> None:
    """As `check_data`, for a checkpoint whose `entries` were read."""
    if "data" not in entries:
        raise ConfigError(
            f"{checkpoint}: does not say what data it was trained on (a run cannot go on from "
            "weights alone); use another `output`"
        )
    changed = describe_table_difference(entries["data"], batches.data_before(entries["data_step"]))
    if changed:
        raise ConfigError(
            f"{checkpoint}: trained on other data than this run file names ({changed}); use that "
            "data, or another `output`; stages may be changed from here on alone"
        )


def check_context(checkpoint: str, entries: Mapping[str, Any], job: TrainingJob) -> None:
    """Raise ConfigError unless the positions of `job` changed before `checkpoint`, whose `entries`
    were read, as they did in the run that wrote it. What comes after may be another."""
    here = job.context_before(entries.get("data_step", 0))
    there = entries.get("context", here[:1])  # what is older knew of no stages
    if len(there) == len(here) == 1:  # none changed: whether they are the model's, its check says
        return
    changed = describe_table_difference({"context": there}, {"context": here})
    if changed:
        raise ConfigError(
            f"{checkpoint}: trained with other stages of [[context]] than this run file has "
            f"({changed}); use those, or another `output`; they may be changed from here on alone"
        )


def read_entries(checkpoint: str) -> dict[str, Any]:
    """All that a checkpoint holds besides tensors and the tokenizer. Raises DamagedCheckpoint."""
    return dict(json.loads(read_small(checkpoint, STATE)))


def read_small(checkpoint: str, name: str) -> bytes:
    """All bytes of one of the small files of `checkpoint`, checked. Raises DamagedCheckpoint."""
    return _read_small(checkpoint, name, CheckpointManifest.read(checkpoint))


def _read_small(checkpoint: str, name: str, manifest: CheckpointManifest) -> bytes:
    chunks = manifest.files.get(name)
    if chunks is None:
        raise DamagedCheckpoint(f"{storage.join(checkpoint, name)}: not in the manifest")
    return read_file(storage.join(checkpoint, name), chunks)
