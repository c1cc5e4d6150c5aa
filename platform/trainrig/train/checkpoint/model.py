"""Checkpoints for those who only use the model in them: opened, made."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from trainrig import storage
from trainrig.models.decoder import Decoder, DecoderConfig
from trainrig.train.checkpoint.chunks import write_file
from trainrig.train.checkpoint.found import describe, read_entries, resolve
from trainrig.train.checkpoint.manifest import (
    STATE,
    TOKENIZER,
    CheckpointManifest,
    commit,
    folder_of,
)
from trainrig.train.checkpoint.reader import read_tensors
from trainrig.train.checkpoint.tensor_file import StagedFile, tensor_file_name
from trainrig.train.run.run_folder import RunFolder


@dataclass(frozen=True)
class CheckpointModel:
    """What a checkpoint holds for those who only use it."""

    path: str
    step: int
    config: DecoderConfig
    tokenizer: str  # the text of its tokenizer.json
    weights: dict[str, Tensor]  # float32, whole, by the decoder's own names
    tuned: bool | None = None  # whether conversations taught it last; None: it was made elsewhere

    def build(self) -> Decoder:
        """The decoder with these weights, ready to evaluate."""
        with torch.device("meta"):
            decoder = Decoder(self.config)
        decoder.load_state_dict(self.weights, assign=True)
        return decoder.eval()


def open_model(path: str) -> CheckpointModel:
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
    entries = read_entries(checkpoint)
    return CheckpointModel(
        path=checkpoint,
        step=entries["step"],
        tuned="conversations" in entries["data"] if "data" in entries else None,
        config=config,
        tokenizer=tokenizer,
        weights={name.removeprefix("model."): value for name, value in tensors.items()},
    )


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
