"""Checkpoints: written by all ranks together, whole or not at all, readable at any worker count.

    checkpoints/step_00001000/attempt-0002/
        shard-00001-model-00001-of-00001.safetensors   rank 0's part, and so on
        state.json  tokenizer.json                     all that is no tensor
        manifest.json                                  created last: the sums of the rest

Tensors are written by torch's distributed checkpointing in its safetensors form, so no file of a
checkpoint holds anything that could be executed. The manifest is the truth: a folder without one
is no checkpoint, and one whose bytes do not match it is passed over for the one before.
"""

import contextlib
import hashlib
import json
import logging
import re
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.hf_storage import (
    HuggingFaceStorageReader,
    HuggingFaceStorageWriter,
)

from trainrig import storage
from trainrig.config import build
from trainrig.errors import ConfigError, DataError
from trainrig.manifest import difference_of, digest
from trainrig.models.decoder import Decoder, DecoderConfig
from trainrig.tokens.batches import Batches
from trainrig.train.run_folder import Attempt, RunFolder
from trainrig.train.state import Job, TrainState

FORMAT = 2
CHUNK = 16 * 2**20  # bytes under one sum: what a reader must hold to check what it reads
MANIFEST = "manifest.json"
COMMIT = re.compile(r"(.*/step_(\d+))/attempt-(\d+)/manifest\.json")

log = logging.getLogger(__name__)


class FileChunks(BaseModel):
    """One file of a checkpoint: its size and the SHA-256 of each CHUNK of it."""

    model_config = ConfigDict(frozen=True)

    bytes: int
    sha256: tuple[str, ...]


class CheckpointManifest(BaseModel):
    """What makes a folder a checkpoint."""

    model_config = ConfigDict(frozen=True)

    format: int = FORMAT
    step: int
    attempt: int
    chunk_bytes: int = CHUNK
    files: dict[str, FileChunks]


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose bytes were found to match its manifest."""

    path: str  # the attempt's folder, which holds the files
    step: int
    attempt: int


@dataclass(frozen=True)
class Model:
    """What a checkpoint holds for those who only use it."""

    path: str
    step: int
    config: DecoderConfig
    tokenizer: str  # the text of its tokenizer.json
    weights: dict[str, Tensor]  # float32, whole, by the decoder's own names

    def build(self) -> Decoder:
        """The decoder with these weights, ready to evaluate."""
        with torch.device("meta"):
            decoder = Decoder(self.config)
        decoder.load_state_dict(self.weights, assign=True)
        return decoder.eval()


def save(
    folder: RunFolder, attempt: Attempt, state: TrainState, job: Job, batches: Batches
) -> None:
    """Write the checkpoint of `state`; every rank must call it. Returns once it is whole."""
    target = _folder_of(folder, state.step, attempt.number)
    mine = _write_tensors(target, state.tensors())
    parts: list[dict[str, FileChunks]] = [{}] * dist.get_world_size()
    dist.all_gather_object(parts, mine)
    if dist.get_rank() == 0:
        files = {name: chunks for part in parts for name, chunks in part.items()}
        entries = {
            "step": state.step,
            "data_step": state.data_step,
            "tokens": state.tokens,
            "seed": job.training.seed,
            "data": batches.data_before(state.data_step),
            "model": job.model.model_dump(mode="json"),
        }
        files |= _write_rest(target, entries, job.tokenizer)
        _commit(target, CheckpointManifest(step=state.step, attempt=attempt.number, files=files))
    dist.barrier()


def _folder_of(folder: RunFolder, step: int, attempt: int) -> str:
    return storage.join(folder.checkpoints, f"step_{step:08d}", f"attempt-{attempt:04d}")


def _write_tensors(target: str, tensors: Mapping[str, Tensor]) -> dict[str, FileChunks]:
    """This rank's part of all tensors, as files below `target`; their sums."""
    with tempfile.TemporaryDirectory(prefix="trainrig-") as scratch:
        # A bucket cannot be written into in place; a disk can, as no manifest names the file yet.
        written = scratch if target.startswith(storage.S3) else target
        Path(written).mkdir(parents=True, exist_ok=True)
        with _alone_without_a_word():
            state_dict_saver.save(
                dict(tensors),
                storage_writer=HuggingFaceStorageWriter(written, save_distributed=True),
                no_dist=not dist.is_initialized(),
            )
        rank = dist.get_rank() if dist.is_initialized() else 0
        names = sorted(p.name for p in Path(written).glob(f"shard-{rank + 1:05d}-*"))
        for name in names:
            _sort_metadata(Path(written) / name)
        sums = {name: chunk_sums(str(Path(written) / name)) for name in names}
        if written == scratch:
            for name in names:
                storage.write(storage.join(target, name), (Path(scratch) / name).read_bytes())
    return sums


@contextlib.contextmanager
def _alone_without_a_word() -> Iterator[None]:
    """torch warns of what `no_dist` asks for."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        yield


def _sort_metadata(path: Path) -> None:
    """Make the safetensors file at `path` a function of its tensors.

    The library writes the keys of the metadata in the order of a hash table, another one each time.
    """
    with path.open("rb+") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
        header["__metadata__"] = dict(sorted(header.get("__metadata__", {}).items()))
        data = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        assert len(data) <= length, f"{path}: its header grew"
        file.seek(8)
        file.write(data.ljust(length))  # the format allows for blanks at its end


def _write_rest(target: str, entries: Mapping[str, Any], tokenizer: str) -> dict[str, FileChunks]:
    rest = {
        "state.json": json.dumps(entries, indent=1).encode(),
        "tokenizer.json": tokenizer.encode(),
    }
    for name, data in rest.items():
        storage.write(storage.join(target, name), data)
    return {name: chunk_sums(storage.join(target, name)) for name in rest}


def _commit(target: str, manifest: CheckpointManifest) -> None:
    data = manifest.model_dump_json(indent=1).encode()
    created = storage.create(storage.join(target, MANIFEST), data)
    assert created, f"{target}: two manifests in one attempt"


def chunk_sums(path: str) -> FileChunks:
    """Size and chunk sums of the file at `path`."""
    sums, size = [], 0
    with storage.open_read(path) as stream:
        while chunk := stream.read(CHUNK):
            sums.append(hashlib.sha256(chunk).hexdigest())
            size += len(chunk)
    return FileChunks(bytes=size, sha256=tuple(sums))


def newest_valid(folder: RunFolder, below: str = "") -> tuple[Checkpoint | None, list[str]]:
    """The newest checkpoint of the run that is whole, and what was wrong with newer ones.

    With `below`, only those in that folder are looked at.
    """
    damages: list[str] = []
    for path, step, number in _committed(folder):
        if not path.startswith(below):
            continue
        damage = find_damage(path)
        if damage is None:
            return Checkpoint(path, step, number), damages
        damages.append(damage)
    return None, damages


def _committed(folder: RunFolder) -> Iterator[tuple[str, int, int]]:
    """(folder, step, attempt) of everything with a manifest that counts, newest first.

    It counts only if no later attempt resumed from before it: what an outlived worker commits
    behind its successors' backs is ignored (fencing), and so is what they found to be damaged.
    """
    attempts = folder.attempts()
    found = []
    for path in storage.list_files(folder.checkpoints, f"/{MANIFEST}"):
        if match := COMMIT.fullmatch(path):
            found.append((int(match[2]), int(match[3]), path.removesuffix(f"/{MANIFEST}")))
    for step, number, path in sorted(found, reverse=True):
        if not any(later.number > number and later.resumed_step < step for later in attempts):
            yield path, step, number


def find_damage(path: str) -> str | None:
    """What is wrong with the checkpoint at `path`, in words; None if every byte is as it was."""
    try:
        manifest = CheckpointManifest.model_validate_json(
            storage.read(storage.join(path, MANIFEST))
        )
    except FileNotFoundError:
        return f"{path}/{MANIFEST}: gone, or never written"
    except ValidationError:
        return f"{path}/{MANIFEST}: torn"
    for name, wanted in manifest.files.items():
        file = storage.join(path, name)
        if not storage.exists(file):
            return f"{file}: gone"
        found = chunk_sums(file)
        if found.bytes != wanted.bytes:
            return f"{file}: {found.bytes} bytes of {wanted.bytes}"
        for index, (there, right) in enumerate(zip(found.sha256, wanted.sha256, strict=True)):
            if there != right:
                return f"{file}: other bytes than were written, from byte {index * CHUNK} on"
    return None


def load(checkpoint: str, state: TrainState, job: Job, batches: Batches) -> None:
    """Fill `state` from `checkpoint`, whatever the number of ranks that wrote it; all must call it.

    Raises ConfigError if it is of another model or of other data.
    """
    entries = _entries(checkpoint)
    _check_model(checkpoint, entries, job.model)
    check_data(checkpoint, batches)
    _read_tensors(checkpoint, state.tensors())
    state.step, state.data_step = entries["step"], entries["data_step"]
    state.tokens = entries["tokens"]


def check_data(checkpoint: str, batches: Batches) -> None:
    """Raise ConfigError, with the difference, unless `batches` before the step of `checkpoint` are
    those that it was trained on. What comes after may be another."""
    entries = _entries(checkpoint)
    if "data" not in entries:
        raise ConfigError(
            f"{checkpoint}: does not say what data it was trained on (a run cannot go on from "
            "weights alone, nor from a checkpoint of an earlier trainrig); use another `output`"
        )
    changed = difference_of(entries["data"], batches.data_before(entries["data_step"]))
    if changed:
        raise ConfigError(
            f"{checkpoint}: trained on other data than this run file names ({changed}); use that "
            "data, or another `output`; stages may be changed from here on alone"
        )


def load_weights(checkpoint: str, state: TrainState, job: Job) -> None:
    """Fill only the weights of `state`, for a run of its own that starts from `checkpoint`."""
    _check_model(checkpoint, _entries(checkpoint), job.model)
    _read_tensors(checkpoint, state.weights())


def _check_model(checkpoint: str, entries: Mapping[str, Any], model: DecoderConfig) -> None:
    wanted = model.model_dump(mode="json")
    differ = [key for key, value in wanted.items() if entries["model"].get(key) != value]
    if differ:
        key = differ[0]
        raise ConfigError(
            f"{checkpoint}: of another model: {key} is {entries['model'].get(key)} there, "
            f"{wanted[key]} in the run file"
        )


def _entries(checkpoint: str) -> dict[str, Any]:
    entries: dict[str, Any] = json.loads(storage.read(storage.join(checkpoint, "state.json")))
    return entries


def _read_tensors(checkpoint: str, tensors: dict[str, Tensor]) -> None:
    """Fill `tensors` in place; alone, or together if there is a process group."""
    with tempfile.TemporaryDirectory(prefix="trainrig-") as scratch:
        folder = checkpoint
        if checkpoint.startswith(storage.S3):
            folder = scratch
            for path in storage.list_files(checkpoint, ".safetensors"):
                link = Path(scratch) / path.rpartition("/")[2]
                link.symlink_to(storage.local_path(path))
        with _alone_without_a_word():
            state_dict_loader.load(
                tensors,
                storage_reader=HuggingFaceStorageReader(folder),
                no_dist=not dist.is_initialized(),
            )


def describe(checkpoint: str) -> tuple[DecoderConfig, str]:
    """The sizes of the model at `checkpoint`, and the text of its tokenizer.json."""
    where = storage.join(checkpoint, "state.json")
    config = build(DecoderConfig, _entries(checkpoint)["model"], where)
    return config, storage.read(storage.join(checkpoint, "tokenizer.json")).decode()


def content_key(checkpoint: str) -> str:
    """A fingerprint of what `checkpoint` holds, whichever attempt wrote it."""
    manifest = CheckpointManifest.model_validate_json(
        storage.read(storage.join(checkpoint, MANIFEST))
    )
    return digest({name: list(chunks.sha256) for name, chunks in manifest.files.items()})


def open_model(path: str) -> Model:
    """The weights of the checkpoint that `path` names, on the CPU, without a process group.

    `path` may be a run folder, its `checkpoints`, one step, or one attempt's folder: the newest
    whole checkpoint there is taken. Raises DataError if there is none.
    """
    checkpoint = resolve(path)
    config, tokenizer = describe(checkpoint)
    with torch.device("meta"):
        names = {name: value.shape for name, value in Decoder(config).state_dict().items()}
    tensors = {f"model.{name}": torch.empty(shape) for name, shape in names.items()}
    _read_tensors(checkpoint, tensors)
    return Model(
        path=checkpoint,
        step=_entries(checkpoint)["step"],
        config=config,
        tokenizer=tokenizer,
        weights={name.removeprefix("model."): tensor for name, tensor in tensors.items()},
    )


def resolve(path: str) -> str:
    """The folder of the newest whole checkpoint at or below `path`. Raises DataError."""
    path = path.rstrip("/")
    if storage.exists(storage.join(path, "state.json")):  # the files themselves, wherever they lie
        if damage := find_damage(path):
            raise DataError(f"{path}: a damaged checkpoint ({damage}); name its run folder instead")
        return path
    run, below = path, ""
    if inside := re.fullmatch(r"(?:(.*)/)?(checkpoints(?:/step_\d+)?)", path):
        run = "." if inside[1] is None else inside[1]
        below = storage.join(run, inside[2])
    found, damages = newest_valid(RunFolder(run), below)
    for damage in damages:
        log.warning("passed over a damaged checkpoint: %s", damage)
    if found is None:
        why = f"; damaged: {damages[0]}" if damages else ""
        raise DataError(
            f"{path}: no whole checkpoint there{why}; name the folder of a training run"
        )
    return found.path


def write_model(
    run_folder: str, config: DecoderConfig, tokenizer: str, weights: Mapping[str, Tensor]
) -> str:
    """Write `weights` as step 0 of a new run folder, without a process group; its checkpoint."""
    folder = RunFolder(run_folder)
    attempt = folder.take_attempt(0)
    target = _folder_of(folder, 0, attempt.number)
    tensors = {f"model.{name}": value.float().contiguous() for name, value in weights.items()}
    files = _write_tensors(target, tensors)
    entries = {"step": 0, "model": config.model_dump(mode="json")}
    files |= _write_rest(target, entries, tokenizer)
    _commit(target, CheckpointManifest(step=0, attempt=attempt.number, files=files))
    return target


def prune(folder: RunFolder, keep: int) -> None:
    """Delete the checkpoints of all steps but the newest `keep` that count.

    Called by the one process that just committed the newest, while no other attempt is writing.
    """
    steps = sorted({step for _, step, _ in _committed(folder)}, reverse=True)
    for path in storage.list_files(folder.checkpoints, f"/{MANIFEST}"):
        match = COMMIT.fullmatch(path)
        if match and int(match[2]) not in steps[:keep]:
            storage.delete(path)  # first: what is left of a deletion cut short is no checkpoint
            storage.delete_folder(match[1])
