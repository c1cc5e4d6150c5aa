"""Finding checkpoints, and reading their metadata without torch: settings, adapter, verification.

An adapter's checkpoint names its base in state.json:

    "adapter": {"lora": {…}, "base": PATH, "manifest_sha256": SUM}

At the end of a run, all ranks read back what they wrote, in parallel. The result is a file next
to the manifest, so that no single process has to read everything again:

    verified.json    {"manifest": SUM of the manifest, "files": {NAME: SHA-256 of the whole file}}
"""

import hashlib
import json
import logging
import re
import tomllib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Self

from trainrig import storage
from trainrig.config import build
from trainrig.errors import ConfigError, DataError
from trainrig.manifest import FileSum, describe_table_difference, digest
from trainrig.models import find_model_class
from trainrig.models.architecture.decoder_config import DecoderConfig, count_parameters
from trainrig.models.architecture.lora_settings import LoRA
from trainrig.splits import PLAIN_WORKER
from trainrig.storage.missing_folders import describe_missing_model, is_missing
from trainrig.tokens.batches import DataHistory
from trainrig.tokens.special_tokens import TokenizerFiles
from trainrig.train.checkpoint import tensor_index
from trainrig.train.checkpoint.manifest import (
    BROUGHT,
    KEPT,
    MANIFEST,
    STATE,
    TOKENIZER,
    CheckpointManifest,
    find_damage,
    find_newest_valid,
    list_committed,
)
from trainrig.train.evaluations import BestBy
from trainrig.train.run.checkpoint_scores import find_best
from trainrig.train.run.run_folder import RunFolder
from trainrig.train.training_job import Adapter, TrainingJob

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


def estimate_worker_memory(checkpoint: str) -> int:
    """Return the bytes of memory of a worker that loads the model of `checkpoint`.

    The weights are read as float32, also for a GPU. Measured with 88 million parameters: 769 MiB of
    resident memory after loading, where this returns 848 MiB.
    """
    return PLAIN_WORKER + 4 * count_parameters(describe(checkpoint)[0]).total


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
        if is_missing(path):
            raise DataError(describe_missing_model(path))
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
        raise tensor_index.DamagedCheckpoint(
            f"{storage.join(checkpoint, name)}: not in the manifest"
        )
    return tensor_index.read_file(storage.join(checkpoint, name), chunks)


def compute_manifest_sum(checkpoint: str) -> str:
    """Return the SHA-256 of the manifest of `checkpoint`, which contains all other checksums."""
    return hashlib.sha256(storage.read(storage.join(checkpoint, MANIFEST))).hexdigest()


def check_base(adapter: Adapter) -> None:
    """Raise ConfigError unless the base of `adapter` exists and is unchanged."""
    try:
        found = compute_manifest_sum(adapter.base)
    except FileNotFoundError:
        raise ConfigError(
            f"{adapter.base}: the base checkpoint of the adapter is missing; restore it"
        ) from None
    if found != adapter.base_sum:
        raise ConfigError(
            f"{adapter.base}: this checkpoint is not the adapter's base (manifest "
            f"{found[:12]}…, expected {adapter.base_sum[:12]}…); restore the original"
        )


def read_adapter(checkpoint: str, entries: Mapping[str, Any]) -> Adapter | None:
    """Return the adapter that `checkpoint` holds, from its `entries`; None for a whole model."""
    there = entries.get("adapter")
    if there is None:
        return None
    lora = build(LoRA, there["lora"], f"{checkpoint}: adapter")
    return Adapter(lora, there["base"], there["manifest_sha256"])


def check_adapter(checkpoint: str, entries: Mapping[str, Any], wanted: Adapter | None) -> None:
    """Raise ConfigError unless `checkpoint` holds the `wanted` adapter, with the same base.

    `entries` are those of the checkpoint; `wanted` None stands for a whole model.
    """
    found = read_adapter(checkpoint, entries)
    if found is None or wanted is None:
        if found is not wanted:
            there = "a whole model" if found is None else f"an adapter of {found.base}"
            raise ConfigError(
                f"{checkpoint}: holds {there}, but the run file has "
                f"{'no ' if wanted is None else ''}[lora]; use another `output`"
            )
        return
    if found.base_sum != wanted.base_sum:
        raise ConfigError(
            f"{checkpoint}: the adapter has another base ({found.base}) than the run file's "
            f"({wanted.base}); name that one, or use another `output`"
        )
    if found.lora != wanted.lora:
        change = describe_table_difference(
            found.lora.model_dump(mode="json"), wanted.lora.model_dump(mode="json")
        )
        raise ConfigError(f"{checkpoint}: other [lora] ({change}); use another `output`")


def build_adapter_entries(adapter: Adapter) -> dict[str, Any]:
    """Return the entries of `adapter` in a checkpoint's state.json."""
    return {
        "lora": adapter.lora.model_dump(mode="json"),
        "base": adapter.base,
        "manifest_sha256": adapter.base_sum,
    }


def keep_base(adapter: Adapter, run_folder: str) -> None:
    """Mark the base as needed; the clean-up of the base's run then never deletes it."""
    by = json.dumps({"adapter": run_folder}).encode()
    storage.create(storage.join(adapter.base, KEPT), by)


VERIFIED = "verified.json"
Sums = dict[str, str]  # file name → SHA-256


def read_back(
    target: str, files: Mapping[str, tensor_index.FileChunks], go_on: Callable[[], None]
) -> Sums:
    """Return the SHA-256 of each of `files` of the checkpoint `target`, verifying each chunk.

    `go_on` is called between reads. Raises DamagedCheckpoint on a mismatch.
    """
    return {name: _compute_sum(storage.join(target, name), c, go_on) for name, c in files.items()}


def _compute_sum(path: str, wanted: tensor_index.FileChunks, go_on: Callable[[], None]) -> str:
    whole = hashlib.sha256()
    with ThreadPoolExecutor(tensor_index.READERS) as threads:
        for some in tensor_index.batched(
            wanted.iterate_chunks(), tensor_index.READERS
        ):  # chunks in memory at the same time
            for data in threads.map(lambda chunk: tensor_index.read_chunk(path, *chunk), some):
                whole.update(data.data)
            go_on()
    return whole.hexdigest()


def record_verified(target: str, sums: Mapping[str, str]) -> None:
    """Record next to the manifest of `target` that all its files were read back and are valid."""
    found = {"manifest": compute_manifest_sum(target), "files": dict(sorted(sums.items()))}
    storage.create(storage.join(target, VERIFIED), json.dumps(found, indent=1).encode())


def read_verified_sums(checkpoint: str) -> dict[str, FileSum] | None:
    """Return size and SHA-256 of each file of `checkpoint`, as its ranks verified them.

    Returns None if they did not, or if the record does not match the manifest.
    """
    try:
        found = json.loads(storage.read(storage.join(checkpoint, VERIFIED)))
        sums: dict[str, str] = found["files"]
        right = found["manifest"] == compute_manifest_sum(checkpoint)
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
    files = CheckpointManifest.read(checkpoint).files
    if not right or sums.keys() != files.keys():
        return None
    return {name: FileSum(bytes=files[name].bytes, sha256=sums[name]) for name in files}
