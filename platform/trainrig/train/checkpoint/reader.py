"""Loads a checkpoint into a state: each rank reads its own rows, and verifies each byte."""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from trainrig import storage
from trainrig.errors import ConfigError, InputError, TrainrigError
from trainrig.models.architecture.decoder_config import DecoderConfig, parameter_shapes
from trainrig.models.architecture.encoder_configs import EncoderConfig
from trainrig.models.initial_values import fill_fresh
from trainrig.parallel.sharding.fsdp import find_local_slice
from trainrig.tokens.batches import DataHistory
from trainrig.train.checkpoint import checkpoint_metadata, tensor_index
from trainrig.train.checkpoint.manifest import CheckpointManifest, mark_damaged
from trainrig.train.checkpoint.rank_file import TYPE_NAMES, find_held
from trainrig.train.state import TrainState
from trainrig.train.training_job import FrozenModel, TrainedModel, TrainingJob

Result = TypeVar("Result")
HEADS = ("head", "pooler")  # modules that a head of another kind lacks


def load(checkpoint: str, state: TrainState, job: TrainingJob, batches: DataHistory) -> None:
    """Fill `state` from `checkpoint`, at any number of ranks. Collective.

    Raises on all ranks alike: ConfigError if the checkpoint has another model, tokenizer or data
    than `job`; DamagedCheckpoint, after marking the checkpoint as damaged, if any rank read wrong
    bytes.
    """
    opened = open_together(checkpoint)
    entries = opened.entries
    tensors = state.list_tensors()
    first = dist.get_rank() == 0
    rows = state.rows(tensors, filled=False)
    # An unsharded tensor lies in a single file, so rank 0 reads it and broadcasts it to spare that
    # file. Pipeline stages have different unsharded tensors, so each rank reads its own.
    alike = state.mesh.pipeline.group is None
    whole = {n: t for n, t in tensors.items() if alike and not isinstance(t, DTensor)}

    def read() -> None:
        checkpoint_metadata.check_context(checkpoint, entries, job)
        # a checkpoint without training state has no step; check_entries refuses it
        check_model(checkpoint, entries, job.model_after(entries.get("data_step", 0)))
        checkpoint_metadata.check_adapter(checkpoint, entries, job.adapter)
        checkpoint_metadata.check_entries(checkpoint, entries, batches)
        if opened.tokenizer != job.tokenizer:
            raise ConfigError(
                f"{checkpoint}: its tokenizer is not the one that this run's tokens were made "
                "with; use tokens of its tokenizer, or another `output`"
            )
        wanted = rows if first else {n: t for n, t in rows.items() if n not in whole}
        read_tensors(checkpoint, wanted, opened.manifest)

    read_together(checkpoint, read)
    state.take_rows(rows, tensors)
    _tell(whole)
    state.step = entries["step"]
    state.data_step = entries["data_step"]
    state.tokens = entries["tokens"]
    # otherwise the earlier attempts used no loss scale
    if state.loss_scale and "loss_scale" in entries:
        state.loss_scale.factor, state.loss_scale.clean = entries["loss_scale"]
    state.skipped = [(begin, end) for begin, end in entries["skipped"]]
    state.carried |= entries.get("carried", {})
    if "spikes" in entries:  # missing in checkpoints that are older than spike detection
        state.detector.restore(entries["spikes"])


def load_weights(checkpoint: str, state: TrainState, job: TrainingJob) -> None:
    """Fill only the weights of `state`, for a new run that starts from `checkpoint`.

    Collective; raises as `load` does.
    """
    opened = open_together(checkpoint)
    weights = state.list_weights()
    rows = state.rows(weights, filled=False)

    def read() -> None:
        check_start(checkpoint, opened.entries, job.model)
        checkpoint_metadata.check_adapter(checkpoint, opened.entries, None)
        wanted = dict(rows)
        for name in find_fresh_parameters(opened.entries, job.model):
            if f"model.{name}" in wanted:  # otherwise it is on another stage
                draw_parameter(state.model, name, job.model, job.training.seed)
                del wanted[f"model.{name}"]
        read_tensors(checkpoint, wanted, opened.manifest)

    read_together(checkpoint, read)
    state.take_rows(rows, weights)


def find_fresh_parameters(entries: Mapping[str, Any], model: DecoderConfig) -> tuple[str, ...]:
    """Return the names of the parameters of `model` that the checkpoint does not provide.

    `entries` are those of the checkpoint. Missing are the head, if it is of another kind or has
    other labels, and further prediction heads that the checkpoint's model does not have.
    """
    further = range(entries["model"].get("further_heads", 0), model.further_heads)
    layers = tuple(f"further_layers.{number}." for number in further)
    added = tuple(name for name in parameter_shapes(model) if name.startswith(layers))
    return (*_find_fresh_head(entries, model), *added)


def _find_fresh_head(entries: Mapping[str, Any], model: DecoderConfig) -> tuple[str, ...]:
    there = entries["model"].get("head", "tokens"), tuple(entries["model"].get("labels", ()))
    if model.head == "tokens" or there == (model.head, model.labels):
        return ()
    # a replaced head also has another kind of transform
    parts = (*HEADS, "transform") if there[0] == "replaced" else HEADS
    return tuple(n for n in parameter_shapes(model) if n.partition(".")[0] in parts)


def check_start(checkpoint: str, entries: Mapping[str, Any], model: DecoderConfig) -> None:
    """Raise ConfigError unless `model` may start with the weights of `checkpoint`.

    `entries` are those of the checkpoint. The models must be equal, except for heads that get new
    random weights.
    """
    if _find_fresh_head(entries, model):
        there = checkpoint_metadata.read_settings(entries, checkpoint).with_head(
            model.head, model.labels
        )
        entries = {**entries, "model": there.model_dump(mode="json")}
    there = checkpoint_metadata.read_settings(entries, checkpoint)
    there = there.model_copy(update={"further_heads": model.further_heads})
    if isinstance(model, EncoderConfig) and not there.bidirectional:
        # the caller asked to convert a decoder to an encoder
        there = EncoderConfig.from_decoder(there)
    entries = {**entries, "model": there.model_dump(mode="json")}
    check_model(checkpoint, entries, model)


def draw_parameter(model: nn.Module, name: str, config: DecoderConfig, seed: int) -> None:
    """Draw the initial values of the parameter `name` of `model`; each rank draws its slice."""
    parameter = model.get_parameter(name)
    part, first = find_local_slice(parameter)
    fill_fresh(part, name, parameter.shape, first, config, seed)


def load_frozen(state: TrainState, job: TrainingJob) -> None:
    """Fill the frozen models that the objective uses. Collective; raises as `load` does."""
    for name, frozen in job.frozen.items():
        _load_frozen(state.others[name], frozen)


def load_trained(state: TrainState, job: TrainingJob) -> None:
    """Fill the additional trained models with their initial weights.

    Collective; raises as `load` does.
    """
    for name, trained in job.trained.items():
        _load_trained(state.others[name], trained, job.training.seed)


def _load_trained(model: nn.Module, trained: TrainedModel, seed: int) -> None:
    opened = open_together(trained.weights)

    def read() -> None:
        check_start(trained.weights, opened.entries, trained.model)
        checkpoint_metadata.check_adapter(trained.weights, opened.entries, None)
        wanted = {f"model.{name}": parameter for name, parameter in model.named_parameters()}
        for name in find_fresh_parameters(opened.entries, trained.model):
            draw_parameter(model, name, trained.model, seed)
            del wanted[f"model.{name}"]
        read_tensors(trained.weights, wanted, opened.manifest)

    read_together(trained.weights, read)


def _load_frozen(model: nn.Module, frozen: FrozenModel) -> None:
    opened = open_together(frozen.weights)

    def read() -> None:
        check_model(frozen.weights, opened.entries, frozen.model)
        checkpoint_metadata.check_adapter(frozen.weights, opened.entries, None)
        wanted = {f"model.{n}": p for n, p in model.named_parameters()}
        read_tensors(frozen.weights, wanted, opened.manifest)

    read_together(frozen.weights, read)


def check_model(checkpoint: str, entries: Mapping[str, Any], model: DecoderConfig) -> None:
    """Raise ConfigError unless the model of `checkpoint`, by its `entries`, equals `model`."""
    wanted = model.model_dump(mode="json")
    there = checkpoint_metadata.read_settings(entries, checkpoint).model_dump(mode="json")
    if differ := _find_first_difference(there, wanted):
        key, value, other = differ
        raise ConfigError(
            f"{checkpoint}: the checkpoint has another model: {key} is {value} there, {other} in "
            "the run file"
        )


def _find_first_difference(
    there: Mapping[str, Any], wanted: Mapping[str, Any], above: str = ""
) -> tuple[str, Any, Any] | None:
    """Return the dotted key of the first value that differs, and its values in both tables."""
    for key, other in wanted.items():
        value = there.get(key)
        if value == other:
            continue
        if isinstance(value, dict) and isinstance(other, dict) and value.keys() == other.keys():
            return _find_first_difference(value, other, f"{above}{key}.")
        return f"{above}{key}", value, other
    return None


def open_together(checkpoint: str) -> checkpoint_metadata.OpenedCheckpoint:
    """Read the metadata of `checkpoint` on rank 0 and broadcast it. Collective.

    Raises on all ranks alike.
    """
    return read_on_first(checkpoint, lambda: checkpoint_metadata.OpenedCheckpoint.read(checkpoint))


def read_on_first(checkpoint: str, read: Callable[[], Result]) -> Result:
    """Return the result of `read`, called on rank 0, to all ranks. Collective.

    Raises on all ranks alike. If thousands of ranks each read the manifest, one file would have to
    serve gigabytes.
    """
    broadcast: list[Result | TrainrigError | None] = [None]
    if dist.get_rank() == 0:
        try:
            broadcast = [read()]
        except TrainrigError as error:
            if isinstance(error, tensor_index.DamagedCheckpoint):
                mark_damaged(checkpoint, str(error))
            broadcast = [error]
    dist.broadcast_object_list(broadcast, src=0)
    if isinstance(broadcast[0], TrainrigError):
        raise broadcast[0]
    return cast(Result, broadcast[0])


@torch.no_grad()
def _tell(tensors: Mapping[str, Tensor]) -> None:
    """Broadcast rank 0's values of `tensors` to all ranks, in place. Collective."""
    if dist.get_world_size() == 1:
        return
    values = [{name: tensor.cpu() for name, tensor in tensors.items()}]
    dist.broadcast_object_list(values, src=0)
    for name, tensor in tensors.items():
        tensor.copy_(values[0][name])


def read_together(checkpoint: str, read: Callable[[], Result]) -> Result:
    """Return the result of `read`, or raise on all ranks alike if it fails on any. Collective.

    If it fails because the checkpoint is damaged, the checkpoint is marked. Of several errors, an
    InputError is raised first.
    """
    problem: TrainrigError | None = None
    try:
        result = read()
    except tensor_index.DamagedCheckpoint as damage:
        mark_damaged(checkpoint, str(damage))
        problem = damage
    except TrainrigError as error:
        problem = error
    problems: list[TrainrigError | None] = [problem] * dist.get_world_size()
    dist.all_gather_object(problems, problem)
    found = [error for error in problems if error]
    if found:
        raise next((error for error in found if isinstance(error, InputError)), found[0])
    return result


def read_tensors(
    checkpoint: str, tensors: Mapping[str, Tensor], manifest: CheckpointManifest | None = None
) -> None:
    """Fill the rows of `tensors` that this rank holds, in place.

    Each chunk that contains any of them is read once and verified; nothing else is read, except the
    manifest if it is not given. Raises DamagedCheckpoint for wrong bytes, and ConfigError if
    `checkpoint` does not contain the tensors.
    """
    manifest = manifest or CheckpointManifest.read(checkpoint)
    mine = {name: find_held(tensor) for name, tensor in tensors.items()}
    # Host buffers to read into: the tensor itself if it is on the CPU and contiguous.
    hosts = {name: _find_host_buffer(local) for name, (local, _) in mine.items()}
    for name, (local, first) in mine.items():
        _check_there(checkpoint, name, manifest.tensors.get(name), local, first)
    wanted = {name: (first, _count_rows(local)) for name, (local, first) in mine.items()}
    names = manifest.tensor_files
    files = [manifest.files[name] for name in names]
    into: dict[str, tensor_index.Bytes] = {
        name: host.reshape(-1).view(torch.uint8).numpy() for name, host in hosts.items()
    }

    def read(job: tensor_index.ChunkRead) -> None:
        begin, end, _ = job.chunk
        data = tensor_index.read_chunk(storage.join(checkpoint, names[job.file]), *job.chunk)
        for copy in job.copies:
            low = max(copy.begin, begin)
            high = min(copy.end, end)
            at = copy.at - copy.begin
            into[copy.name][low + at : high + at] = data[low - begin : high - begin]

    jobs = tensor_index.plan_reads(checkpoint, manifest.tensors, files, wanted)
    with ThreadPoolExecutor(tensor_index.READERS) as threads:
        for _ in threads.map(read, jobs):
            pass
    for name, (local, _) in mine.items():
        if local.device.type != "cpu" or not local.is_contiguous():
            local.copy_(hosts[name])


def _find_host_buffer(local: Tensor) -> Tensor:
    if local.device.type == "cpu" and local.is_contiguous():
        return local
    return torch.empty(local.shape, dtype=local.dtype)


def _count_rows(local: Tensor) -> int:
    return (local.shape[0] if local.ndim else 1) if local.numel() else 0


def _check_there(
    checkpoint: str, name: str, there: tensor_index.IndexedTensor | None, local: Tensor, first: int
) -> None:
    """Raise ConfigError unless the stored tensor `there` has the wanted rows and dtype."""
    if there is None or first + _count_rows(local) > there.rows:
        raise ConfigError(
            f"{checkpoint}: has no {name}, or not all of it; was it trained with another optimizer?"
        )
    if there.type != TYPE_NAMES[local.dtype] or there.shape[1:] != tuple(local.shape[1:]):
        raise ConfigError(
            f"{checkpoint}: its {name} is {there.type} of rows {there.shape[1:]}, this run's "
            f"{TYPE_NAMES[local.dtype]} of {tuple(local.shape[1:])}"
        )
