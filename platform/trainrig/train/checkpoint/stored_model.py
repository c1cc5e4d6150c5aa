"""Checkpoints for users of the model alone: opening, reading, writing and averaging them.

Averaged weights are written as checkpoints, which can be evaluated, exported and fine-tuned.
"""

import json
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trainrig import storage
from trainrig.errors import ConfigError, DataError
from trainrig.models.decoder import Decoder, DecoderConfig
from trainrig.models.encoder import build_model
from trainrig.models.families.safetensors_files import PlannedTensor, split_into_files
from trainrig.storage.missing_folders import describe_origin, is_missing
from trainrig.tokens.special_tokens import TokenizerFiles
from trainrig.train.checkpoint import checkpoint_metadata, manifest, tensor_index
from trainrig.train.checkpoint.adapter import OpenAdapter, merge_weight, open_adapter, require_base
from trainrig.train.checkpoint.model_parents import record_parents
from trainrig.train.checkpoint.rank_file import StagedFile, tensor_file_name
from trainrig.train.checkpoint.reader import read_tensors
from trainrig.train.run.run_folder import RunFolder
from trainrig.train.training_job import Adapter

# Maximum bytes of tensors that are written together, and so are in memory together.
FILE_BYTES = 2**28

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CheckpointModel:
    """Model of a checkpoint, without the training state."""

    path: str
    step: int
    config: DecoderConfig
    tokenizer: str  # content of tokenizer.json
    beside: dict[str, str]  # further files of the tokenizer, by name
    weights: dict[str, Tensor]  # complete, float32, by parameter name
    # True if last trained on conversations; None: unknown, as it was made elsewhere
    tuned: bool | None = None
    # the adapter that is merged into `weights`, if it is an adapter's checkpoint
    adapter: OpenAdapter | None = None

    def build(self) -> Decoder:
        """Build the decoder with these weights, in evaluation mode."""
        with torch.device("meta"):
            decoder = build_model(self.config)
        decoder.load_state_dict(self.weights, assign=True)
        return decoder.eval()


def open_model(path: str) -> CheckpointModel:
    """Read the weights of the checkpoint that `path` names to the CPU, without a process group.

    `path` may be a run folder, its `checkpoints`, one step, or one attempt's folder: the newest
    valid checkpoint there is used. Raises DataError if there is none.
    """
    checkpoint = checkpoint_metadata.resolve(path, verify=False)
    try:
        return _open(checkpoint)  # verifies each byte as it is read, and reads no optimizer state
    except tensor_index.DamagedCheckpoint as damage:
        log.warning("skipped a damaged checkpoint: %s", damage)
    return _open(checkpoint_metadata.resolve(path))


def _open(checkpoint: str) -> CheckpointModel:
    opened = checkpoint_metadata.OpenedCheckpoint.read(checkpoint)
    config = opened.config
    entries = opened.entries
    with torch.device("meta"):
        names = {name: value.shape for name, value in build_model(config).state_dict().items()}
    of = checkpoint_metadata.read_adapter(checkpoint, entries)
    adapter = open_adapter(checkpoint, of, config) if of else None
    if of:
        require_base(of)
    tensors = {f"model.{name}": torch.empty(shape) for name, shape in names.items()}
    # the base may lack a head that is trained without an adapter
    own = adapter.tensors if adapter else {}
    in_base = {name: t for name, t in tensors.items() if name.removeprefix("model.") not in own}
    read_tensors(of.base if of else checkpoint, in_base, None if of else opened.manifest)
    weights = {name.removeprefix("model."): value for name, value in tensors.items()}
    if adapter:
        weights = {name: merge_weight(adapter, name, w) for name, w in weights.items()}
    return CheckpointModel(
        path=checkpoint,
        step=entries["step"],
        tuned="conversations" in entries["data"] if "data" in entries else None,
        config=config,
        tokenizer=opened.tokenizer,
        beside=dict(opened.read_beside().beside),
        weights=weights,
        adapter=adapter,
    )


class StoredModel:
    """Checkpoint whose tensors are read on request, one at a time."""

    def __init__(self, path: str) -> None:
        """Open the newest valid checkpoint at `path`, as `open_model` finds it.

        Raises DataError if there is none.
        """
        self.path = checkpoint_metadata.resolve(path)
        opened = checkpoint_metadata.OpenedCheckpoint.read(self.path)
        self.config = opened.config
        self.files = opened.read_beside()
        self.step: int = opened.entries["step"]
        # the adapter that is merged into the tensors that are read
        self.adapter: OpenAdapter | None = None
        self._manifest = opened.manifest  # manifest of the checkpoint with the model's own tensors
        if of := checkpoint_metadata.read_adapter(self.path, opened.entries):
            self.adapter = open_adapter(self.path, of, self.config)
            require_base(of)
            self._manifest = manifest.CheckpointManifest.read(of.base)
        with torch.device("meta"):
            model = build_model(self.config)
        self._shapes = {name: t.shape for name, t in model.state_dict().items()}

    def read(self, name: str) -> Tensor:
        """Read a whole tensor by its parameter name: float32, on the CPU."""
        if self.adapter and name in self.adapter.tensors:
            return self.adapter.tensors[name]
        tensor = torch.empty(self._shapes[name])
        path = self.adapter.of.base if self.adapter else self.path
        read_tensors(path, {f"model.{name}": tensor}, self._manifest)
        return merge_weight(self.adapter, name, tensor) if self.adapter else tensor


def write_model(
    run_folder: str,
    config: DecoderConfig,
    tokenizer: str,
    weights: Mapping[str, Tensor | PlannedTensor],
    beside: Mapping[str, str] | None = None,
) -> str:
    """Write `weights` as step 0 of a new run folder, and return the checkpoint's path.

    Needs no process group. Of planned tensors, only FILE_BYTES are in memory at a time, or the
    largest tensor if that is larger. `beside`: further files of the tokenizer, by name.
    """
    tensors = {f"model.{name}": value for name, value in weights.items()}
    entries = {"model": config.model_dump(mode="json")}
    return _write_first(run_folder, entries, tokenizer, tensors, beside)


def write_adapter(
    run_folder: str,
    config: DecoderConfig,
    tokenizer: str,
    adapter: Adapter,
    tensors: Mapping[str, Tensor],
    beside: Mapping[str, str] | None = None,
) -> str:
    """Write the tensors of an `adapter` as step 0 of a new run folder; return its checkpoint."""
    named = {f"adapter.{name}": value for name, value in tensors.items()}
    entries = {
        "model": config.model_dump(mode="json"),
        "adapter": checkpoint_metadata.build_adapter_entries(adapter),
    }
    return _write_first(run_folder, entries, tokenizer, named, beside)


def _write_first(
    run_folder: str,
    entries: Mapping[str, Any],
    tokenizer: str,
    tensors: Mapping[str, Tensor | PlannedTensor],
    beside: Mapping[str, str] | None,
) -> str:
    folder = RunFolder(run_folder)
    attempt = folder.take_attempt(0)
    target = manifest.name_checkpoint_folder(folder.checkpoints, 0, attempt.number)
    texts = {
        manifest.STATE: json.dumps({"step": 0, **entries}, indent=1).encode(),
        manifest.TOKENIZER: tokenizer.encode(),
    }
    if beside:
        texts[manifest.BROUGHT] = TokenizerFiles(tokenizer, beside).brought
    files = {}
    index = {}
    for number, names in enumerate(_group_by_file(tensors)):
        file = tensor_file_name(number)
        files[file] = _stage(tensors, names).write(storage.join(target, file))
        for name in names:
            shape = tuple(tensors[name].shape)
            partitions = tensor_index.compute_partitions([number], shape[0] if shape else 1)
            index[name] = tensor_index.IndexedTensor(type="F32", shape=shape, partitions=partitions)
    for name, data in texts.items():
        files[name] = tensor_index.write_file(storage.join(target, name), memoryview(data))
    manifest.commit(
        target,
        manifest.CheckpointManifest(step=0, attempt=attempt.number, files=files, tensors=index),
    )
    return target


def _group_by_file(tensors: Mapping[str, Tensor | PlannedTensor]) -> list[list[str]]:
    """Return the names of tensors, in groups of at most FILE_BYTES that are written together."""
    sizes = {name: 4 * math.prod(value.shape) for name, value in tensors.items()}
    return list(split_into_files(sizes, FILE_BYTES).values())


def _stage(tensors: Mapping[str, Tensor | PlannedTensor], names: list[str]) -> StagedFile:
    with torch.device("meta"):  # only the file's buffer needs memory
        parts = {name: (torch.empty(tensors[name].shape), 0) for name in names}
    staged = StagedFile(parts)
    for name in names:
        value = tensors[name]
        value = value.read() if isinstance(value, PlannedTensor) else value
        staged.fill_one(name, value)
    return staged


def write_mean_of_last(run: str, count: int, out: str) -> tuple[str, list[int]]:
    """Write the mean of the weights of the `count` newest valid checkpoints of `run`.

    It becomes step 0 of the new run folder `out`, which also records these checkpoints. Returns the
    path of the new checkpoint, and the steps that were averaged, ascending. The sums are in
    float64, in the order of steps, so the result is bit-identical on any machine. Raises DataError
    if the run has fewer checkpoints.
    """
    folder = RunFolder(run)
    paths: dict[int, str] = {}
    for path, step, _ in manifest.list_committed(folder, folder.checkpoints):
        if (
            len(paths) < count
            and step not in paths
            and not manifest.find_damage(path, thorough=False)
        ):
            paths[step] = path
    if is_missing(run):
        raise DataError(f"{run}: no such folder{describe_origin(run)}")
    if len(paths) < count:
        raise DataError(
            f"{run}: only {len(paths)} valid checkpoints, so the last {count} cannot be "
            "averaged; use "
            "a smaller --last, or train with a larger training.checkpoints.keep"
        )
    total: dict[str, Tensor] = {}
    for step in sorted(paths):
        for name, value in open_model(paths[step]).weights.items():
            total[name] = total[name] + value.double() if name in total else value.double()
    mean = {name: (value / count).float() for name, value in total.items()}
    parents = {f"step {step}": paths[step] for step in sorted(paths)}
    return _write_averaged_model(paths[max(paths)], mean, out, parents), sorted(paths)


def write_average(run: str, horizon: int, out: str) -> str:
    """Write the average over `horizon` updates, stored in the newest checkpoint of `run`.

    It becomes step 0 of the new run folder `out`; returns the path of that checkpoint. Raises
    ConfigError if the checkpoint has no such average.
    """
    path = checkpoint_metadata.resolve(run)
    config, _ = checkpoint_metadata.describe(path)
    with torch.device("meta"):
        shapes = {
            name: parameter.shape for name, parameter in build_model(config).named_parameters()
        }
    held = {f"average.{horizon}.{name}": torch.empty(shape) for name, shape in shapes.items()}
    try:
        read_tensors(path, held)
    except ConfigError:
        raise ConfigError(
            f"{path}: has no average over {horizon} updates; train with "
            f"training.averaging.horizons = [{horizon}], or average the last checkpoints (--last)"
        ) from None
    prefix = f"average.{horizon}."
    weights = {name.removeprefix(prefix): tensor for name, tensor in held.items()}
    return _write_averaged_model(path, weights, out, {"checkpoint": path})


def _write_averaged_model(
    like: str, weights: dict[str, Tensor], out: str, parents: Mapping[str, str]
) -> str:
    config, tokenizer = checkpoint_metadata.describe(like)
    record_parents(out, "average", parents)
    return write_model(
        out, config, tokenizer, weights, checkpoint_metadata.read_tokenizer_files(like).beside
    )
