"""Loading a checkpoint into a state: each rank its own rows, every byte checked as it is read."""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from trainrig import storage
from trainrig.errors import ConfigError, InputError, TrainrigError
from trainrig.models.decoder_config import DecoderConfig, parameter_shapes
from trainrig.models.encoder.config import EncoderConfig
from trainrig.models.initial_values import fill_fresh
from trainrig.parallel.fsdp import find_local_slice
from trainrig.tokens.batches import DataHistory
from trainrig.train.checkpoint.adapter_entries import check_adapter
from trainrig.train.checkpoint.chunks import (
    READERS,
    Bytes,
    DamagedCheckpoint,
    read_chunk,
)
from trainrig.train.checkpoint.found import (
    OpenedCheckpoint,
    check_context,
    check_entries,
    read_settings,
)
from trainrig.train.checkpoint.index import ChunkRead, IndexedTensor, plan_reads
from trainrig.train.checkpoint.manifest import CheckpointManifest, mark_damaged
from trainrig.train.checkpoint.shares import find_held
from trainrig.train.checkpoint.tensor_file import TYPE_NAMES
from trainrig.train.job import FrozenModel, TrainedModel, TrainingJob
from trainrig.train.state import TrainState

Result = TypeVar("Result")
HEADS = ("head", "pooler")  # modules that a head of another kind lacks


def load(checkpoint: str, state: TrainState, job: TrainingJob, batches: DataHistory) -> None:
    """Fill `state` from `checkpoint`, whatever the number of ranks that wrote it; all must call it.

    Raises, on all ranks alike, ConfigError if it is of another model, tokenizer or data, and
    DamagedCheckpoint, having marked it so, if some rank read other bytes than were written.
    """

    opened = open_together(checkpoint)
    entries, tensors, first = opened.entries, state.list_tensors(), dist.get_rank() == 0
    rows = state.rows(tensors, filled=False)
    # What is not sharded lies in one file, which would have all ranks ask for it. Of stages each
    # has its own.
    alike = state.mesh.pipeline.group is None
    whole = {n: t for n, t in tensors.items() if alike and not isinstance(t, DTensor)}

    def read() -> None:
        check_context(checkpoint, entries, job)
        # Weights alone have no step, and are refused for it below.
        check_model(checkpoint, entries, job.model_after(entries.get("data_step", 0)))
        check_adapter(checkpoint, entries, job.adapter)
        check_entries(checkpoint, entries, batches)
        if opened.tokenizer != job.tokenizer:
            raise ConfigError(
                f"{checkpoint}: of another tokenizer than the tokens of this run; use its tokens, "
                "or another `output`"
            )
        wanted = rows if first else {n: t for n, t in rows.items() if n not in whole}
        read_tensors(checkpoint, wanted, opened.manifest)

    read_together(checkpoint, read)
    state.take_rows(rows, tensors)
    _tell(whole)
    state.step, state.data_step = entries["step"], entries["data_step"]
    state.tokens = entries["tokens"]
    if state.loss_scale and "loss_scale" in entries:  # else what it is resumed from had none
        state.loss_scale.factor, state.loss_scale.clean = entries["loss_scale"]
    state.skipped = [(begin, end) for begin, end in entries["skipped"]]
    state.carried |= entries.get("carried", {})
    if "spikes" in entries:  # not of checkpoints that were written before there was a detector
        state.detector.restore(entries["spikes"])


def load_weights(checkpoint: str, state: TrainState, job: TrainingJob) -> None:
    """Fill only the weights of `state`, for a run of its own that starts from `checkpoint`.

    All ranks must call it; it raises as `load` does.
    """

    opened = open_together(checkpoint)
    weights = state.list_weights()
    rows = state.rows(weights, filled=False)

    def read() -> None:
        check_start(checkpoint, opened.entries, job.model)
        check_adapter(checkpoint, opened.entries, None)
        wanted = dict(rows)
        for name in find_fresh_parameters(opened.entries, job.model):
            if f"model.{name}" in wanted:  # else another stage has it
                draw_parameter(state.model, name, job.model, job.training.seed)
                del wanted[f"model.{name}"]
        read_tensors(checkpoint, wanted, opened.manifest)

    read_together(checkpoint, read)
    state.take_rows(rows, weights)


def find_fresh_parameters(entries: Mapping[str, Any], model: DecoderConfig) -> tuple[str, ...]:
    """Names of the parameters of `model` that are still to be drawn: those of its head, if that
    says something else than the head of the model that `entries` are of, and of further heads that
    that one has not."""
    further = range(entries["model"].get("further_heads", 0), model.further_heads)
    layers = tuple(f"further_layers.{number}." for number in further)
    added = tuple(name for name in parameter_shapes(model) if name.startswith(layers))
    return (*_find_fresh_head(entries, model), *added)


def _find_fresh_head(entries: Mapping[str, Any], model: DecoderConfig) -> tuple[str, ...]:
    there = entries["model"].get("head", "tokens"), tuple(entries["model"].get("labels", ()))
    if model.head == "tokens" or there == (model.head, model.labels):
        return ()
    parts = (*HEADS, "transform") if there[0] == "replaced" else HEADS  # which is of another kind
    return tuple(n for n in parameter_shapes(model) if n.partition(".")[0] in parts)


def check_start(checkpoint: str, entries: Mapping[str, Any], model: DecoderConfig) -> None:
    """Raise ConfigError unless `model` may begin with the weights of `checkpoint`, whose `entries`
    were read: the same, but for heads that are still to be drawn."""
    if _find_fresh_head(entries, model):
        there = read_settings(entries, checkpoint).with_head(model.head, model.labels)
        entries = {**entries, "model": there.model_dump(mode="json")}
    there = read_settings(entries, checkpoint)
    there = there.model_copy(update={"further_heads": model.further_heads})
    if isinstance(model, EncoderConfig) and not there.bidirectional:
        there = EncoderConfig.from_decoder(there)  # the run file says so: its verb asked
    entries = {**entries, "model": there.model_dump(mode="json")}
    check_model(checkpoint, entries, model)


def draw_parameter(model: nn.Module, name: str, config: DecoderConfig, seed: int) -> None:
    """Give the parameter `name` of `model` its fresh values; each rank its own slice."""
    parameter = model.get_parameter(name)
    part, first = find_local_slice(parameter)
    fill_fresh(part, name, parameter.shape, first, config, seed)


def load_frozen(state: TrainState, job: TrainingJob) -> None:
    """Fill the models beside the one that is trained. All ranks must call it; raises as `load`."""
    for name, frozen in job.frozen.items():
        _load_frozen(state.others[name], frozen)


def load_trained(state: TrainState, job: TrainingJob) -> None:
    """Fill the models that are trained beside with what they begin with. All ranks must call it;
    raises as `load`."""
    for name, each in job.trained.items():
        _load_trained(state.others[name], each, job.training.seed)


def _load_trained(model: nn.Module, trained: TrainedModel, seed: int) -> None:
    opened = open_together(trained.weights)

    def read() -> None:
        check_start(trained.weights, opened.entries, trained.model)
        check_adapter(trained.weights, opened.entries, None)
        wanted = {f"model.{name}": each for name, each in model.named_parameters()}
        for name in find_fresh_parameters(opened.entries, trained.model):
            draw_parameter(model, name, trained.model, seed)
            del wanted[f"model.{name}"]
        read_tensors(trained.weights, wanted, opened.manifest)

    read_together(trained.weights, read)


def _load_frozen(model: nn.Module, frozen: FrozenModel) -> None:
    opened = open_together(frozen.weights)

    def read() -> None:
        check_model(frozen.weights, opened.entries, frozen.model)
        check_adapter(frozen.weights, opened.entries, None)
        wanted = {f"model.{n}": p for n, p in model.named_parameters()}
        read_tensors(frozen.weights, wanted, opened.manifest)

    read_together(frozen.weights, read)


def check_model(checkpoint: str, entries: Mapping[str, Any], model: DecoderConfig) -> None:
    """Raise ConfigError unless `checkpoint`, whose `entries` were read, is of `model`."""
    wanted = model.model_dump(mode="json")
    there = read_settings(entries, checkpoint).model_dump(mode="json")
    if differ := _find_first_difference(there, wanted):
        key, value, other = differ
        raise ConfigError(
            f"{checkpoint}: of another model: {key} is {value} there, {other} in the run file"
        )


def _find_first_difference(
    there: Mapping[str, Any], wanted: Mapping[str, Any], above: str = ""
) -> tuple[str, Any, Any] | None:
    """The dotted key of the first value of `wanted` that `there` has otherwise, and both."""
    for key, other in wanted.items():
        value = there.get(key)
        if value == other:
            continue
        if isinstance(value, dict) and isinstance(other, dict) and value.keys() == other.keys():
            return _find_first_difference(value, other, f"{above}{key}.")
        return f"{above}{key}", value, other
    return None


def open_together(checkpoint: str) -> OpenedCheckpoint:
    """The checkpoint, read by rank 0 and told to all, which must call it; raises on all alike."""
    return read_on_first(checkpoint, lambda: OpenedCheckpoint.read(checkpoint))


def read_on_first(checkpoint: str, read: Callable[[], Result]) -> Result:
    """What `read` gives rank 0, on all ranks, which must call it; raises on all alike.

    Thousands of ranks that each read the manifest would ask one object for gigabytes.
    """
    told: list[Result | TrainrigError | None] = [None]
    if dist.get_rank() == 0:
        try:
            told = [read()]
        except TrainrigError as error:
            if isinstance(error, DamagedCheckpoint):
                mark_damaged(checkpoint, str(error))
            told = [error]
    dist.broadcast_object_list(told, src=0)
    if isinstance(told[0], TrainrigError):
        raise told[0]
    return cast(Result, told[0])


@torch.no_grad()
def _tell(tensors: Mapping[str, Tensor]) -> None:
    """Give all ranks, which must call it, the values that rank 0 has in `tensors`."""
    if dist.get_world_size() == 1:
        return
    told = [{name: tensor.cpu() for name, tensor in tensors.items()}]
    dist.broadcast_object_list(told, src=0)
    for name, tensor in tensors.items():
        tensor.copy_(told[0][name])


def read_together(checkpoint: str, read: Callable[[], Result]) -> Result:
    """What `read` gives, unless it fails on some rank: then all fail alike."""
    problem: TrainrigError | None = None
    try:
        result = read()
    except DamagedCheckpoint as damage:
        mark_damaged(checkpoint, str(damage))
        problem = damage
    except TrainrigError as error:
        problem = error
    problems: list[TrainrigError | None] = [problem] * dist.get_world_size()
    dist.all_gather_object(problems, problem)
    found = [each for each in problems if each]
    if found:
        raise next((each for each in found if isinstance(each, InputError)), found[0])
    return result


def read_tensors(
    checkpoint: str, tensors: Mapping[str, Tensor], manifest: CheckpointManifest | None = None
) -> None:
    """Fill the rows of `tensors` that this rank holds, in place; no other byte is kept.

    Every chunk of a file that holds any of them is read once, and checked; nothing else is asked
    for, but for the manifest where it is not given.

    Raises DamagedCheckpoint; ConfigError if `checkpoint` has no such tensors.
    """
    manifest = manifest or CheckpointManifest.read(checkpoint)
    mine = {name: find_held(tensor) for name, tensor in tensors.items()}
    # Memory of the host, to read into: that of a tensor itself if it is there.
    hosts = {name: _find_host_buffer(local) for name, (local, _) in mine.items()}
    for name, (local, first) in mine.items():
        _check_there(checkpoint, name, manifest.tensors.get(name), local, first)
    wanted = {name: (first, _count_rows(local)) for name, (local, first) in mine.items()}
    names = manifest.tensor_files
    files = [manifest.files[name] for name in names]
    into: dict[str, Bytes] = {
        name: host.reshape(-1).view(torch.uint8).numpy() for name, host in hosts.items()
    }

    def read(job: ChunkRead) -> None:
        begin, end, _ = job.chunk
        data = read_chunk(storage.join(checkpoint, names[job.file]), *job.chunk)
        for copy in job.copies:
            low, high = max(copy.begin, begin), min(copy.end, end)
            at = copy.at - copy.begin
            into[copy.name][low + at : high + at] = data[low - begin : high - begin]

    jobs = plan_reads(checkpoint, manifest.tensors, files, wanted)
    with ThreadPoolExecutor(READERS) as threads:
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
    checkpoint: str, name: str, there: IndexedTensor | None, local: Tensor, first: int
) -> None:
    """Raise ConfigError unless the tensor that is `there` has the rows that are wanted."""
    if there is None or first + _count_rows(local) > there.rows:
        raise ConfigError(
            f"{checkpoint}: has no {name}, or not all of it; was it trained with another optimizer?"
        )
    if there.type != TYPE_NAMES[local.dtype] or there.shape[1:] != tuple(local.shape[1:]):
        raise ConfigError(
            f"{checkpoint}: its {name} is {there.type} of rows {there.shape[1:]}, this run's "
            f"{TYPE_NAMES[local.dtype]} of {tuple(local.shape[1:])}"
        )
