"""Checkpoints for those who only use the model in them: found, described, opened, made."""

import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from trainrig import storage
from trainrig.config import build
from trainrig.errors import DataError
from trainrig.manifest import digest
from trainrig.models.decoder import Decoder, DecoderConfig
from trainrig.train.checkpoint.chunks import write_file
from trainrig.train.checkpoint.manifest import (
    STATE,
    TOKENIZER,
    CheckpointManifest,
    commit,
    find_damage,
    folder_of,
    newest_valid,
)
from trainrig.train.checkpoint.reader import read_entries, read_small, read_tensors
from trainrig.train.checkpoint.tensor_file import StagedFile, tensor_file_name
from trainrig.train.run_folder import RunFolder

log = logging.getLogger(__name__)


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


def describe(checkpoint: str) -> tuple[DecoderConfig, str]:
    """The sizes of the model at `checkpoint`, and the text of its tokenizer.json."""
    where = storage.join(checkpoint, STATE)
    config = build(DecoderConfig, read_entries(checkpoint)["model"], where)
    return config, read_small(checkpoint, TOKENIZER).decode()


def content_key(checkpoint: str) -> str:
    """A fingerprint of what `checkpoint` holds, whichever attempt wrote it."""
    files = CheckpointManifest.read(checkpoint).files
    return digest({name: list(chunks.sha256) for name, chunks in files.items()})


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
    read_tensors(checkpoint, tensors)
    return Model(
        path=checkpoint,
        step=read_entries(checkpoint)["step"],
        config=config,
        tokenizer=tokenizer,
        weights={name.removeprefix("model."): value for name, value in tensors.items()},
    )


def resolve(path: str) -> str:
    """The folder of the newest whole checkpoint at or below `path`. Raises DataError."""
    path = path.rstrip("/")
    if storage.exists(storage.join(path, STATE)):  # the files themselves, wherever they lie
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
    target = folder_of(folder.checkpoints, 0, attempt.number)
    parts = {f"model.{name}": (value.float().contiguous(), 0) for name, value in weights.items()}
    staged = StagedFile(parts)
    staged.fill(parts)
    entries = {"step": 0, "model": config.model_dump(mode="json")}
    texts = {STATE: json.dumps(entries, indent=1).encode(), TOKENIZER: tokenizer.encode()}
    name = tensor_file_name(0)
    files = {name: staged.write(storage.join(target, name))}
    for name, data in texts.items():
        files[name] = write_file(storage.join(target, name), memoryview(data))
    commit(target, CheckpointManifest(step=0, attempt=attempt.number, files=files))
    return target
