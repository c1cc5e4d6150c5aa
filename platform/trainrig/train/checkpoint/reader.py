"""Loading a checkpoint into a state: each rank its own rows, every byte checked as it is read."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainrig import storage
from trainrig.errors import ConfigError, InputError, TrainrigError
from trainrig.models.decoder_config import DecoderConfig
from trainrig.models.encoder.config import EncoderConfig
from trainrig.models.initial_values import fill_fresh
from trainrig.parallel.slices import local_slice
from trainrig.tokens.batches import DataHistory
from trainrig.train.checkpoint.adapter_entries import check_adapter
from trainrig.train.checkpoint.chunks import (
    READERS,
    Bytes,
    DamagedCheckpoint,
    FileChunks,
    read_chunk,
)
from trainrig.train.checkpoint.found import (
    check_context,
    check_entries,
    read_entries,
    read_settings,
    read_small,
)
from trainrig.train.checkpoint.manifest import (
    SUFFIX,
    TOKENIZER,
    CheckpointManifest,
    mark_damaged,
)
from trainrig.train.checkpoint.shares import find_held
from trainrig.train.checkpoint.tensor_file import TensorRows, parse_header
from trainrig.train.job import FrozenModel, TrainedModel, TrainingJob
from trainrig.train.state import TrainState

Result = TypeVar("Result")
HEAD = "head.weight"


def load(checkpoint: str, state: TrainState, job: TrainingJob, batches: DataHistory) -> None:
    """Fill `state` from `checkpoint`, whatever the number of ranks that wrote it; all must call it.

    Raises, on all ranks alike, ConfigError if it is of another model, tokenizer or data, and
    DamagedCheckpoint, having marked it so, if some rank read other bytes than were written.
    """

    def read() -> dict[str, Any]:
        entries = read_entries(checkpoint)
        check_context(checkpoint, entries, job)
        check_model(checkpoint, entries, job.model_after(entries["data_step"]))
        check_adapter(checkpoint, entries, job.adapter)
        check_entries(checkpoint, entries, batches)
        if read_small(checkpoint, TOKENIZER).decode() != job.tokenizer:
            raise ConfigError(
                f"{checkpoint}: of another tokenizer than the tokens of this run; use its tokens, "
                "or another `output`"
            )
        read_tensors(checkpoint, state.tensors())
        return entries

    entries = read_together(checkpoint, read)
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

    def read() -> None:
        entries = read_entries(checkpoint)
        check_start(checkpoint, entries, job.model)
        check_adapter(checkpoint, entries, None)
        wanted = state.weights()
        if lacks_head(entries, job.model):
            draw_head(state.model, job.model, job.training.seed)
            del wanted[f"model.{HEAD}"]
        read_tensors(checkpoint, wanted)

    read_together(checkpoint, read)


def lacks_head(entries: Mapping[str, Any], model: DecoderConfig) -> bool:
    """Whether `model` gives scores, and the one that `entries` are of gives none yet."""
    return model.head == "score" and entries["model"].get("head", "tokens") != "score"


def check_start(checkpoint: str, entries: Mapping[str, Any], model: DecoderConfig) -> None:
    """Raise ConfigError unless `model` may begin with the weights of `checkpoint`, whose `entries`
    were read: the same, but for a head that is still to be drawn."""
    if lacks_head(entries, model):
        there = read_settings(entries, checkpoint).with_score_head()
        entries = {**entries, "model": there.model_dump(mode="json")}
    there = read_settings(entries, checkpoint)
    if isinstance(model, EncoderConfig) and not there.bidirectional:
        there = EncoderConfig.of_decoder(there)  # the run file says so: its verb asked
        entries = {**entries, "model": there.model_dump(mode="json")}
    check_model(checkpoint, entries, model)


def draw_head(model: nn.Module, config: DecoderConfig, seed: int) -> None:
    """Give the head of `model` its fresh values; each rank its own slice."""
    parameter = model.get_parameter(HEAD)
    part, first = local_slice(parameter)
    fill_fresh(part, HEAD, parameter.shape, first, config, seed)


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
    def read() -> None:
        entries = read_entries(trained.weights)
        check_start(trained.weights, entries, trained.model)
        check_adapter(trained.weights, entries, None)
        wanted = {f"model.{name}": each for name, each in model.named_parameters()}
        if lacks_head(entries, trained.model):
            draw_head(model, trained.model, seed)
            del wanted[f"model.{HEAD}"]
        read_tensors(trained.weights, wanted)

    read_together(trained.weights, read)


def _load_frozen(model: nn.Module, frozen: FrozenModel) -> None:
    def read() -> None:
        entries = read_entries(frozen.weights)
        check_model(frozen.weights, entries, frozen.model)
        check_adapter(frozen.weights, entries, None)
        read_tensors(frozen.weights, {f"model.{n}": p for n, p in model.named_parameters()})

    read_together(frozen.weights, read)


def check_model(checkpoint: str, entries: Mapping[str, Any], model: DecoderConfig) -> None:
    """Raise ConfigError unless `checkpoint`, whose `entries` were read, is of `model`."""
    wanted = model.model_dump(mode="json")
    there = read_settings(entries, checkpoint).model_dump(mode="json")
    if differ := _first_difference(there, wanted):
        key, value, other = differ
        raise ConfigError(
            f"{checkpoint}: of another model: {key} is {value} there, {other} in the run file"
        )


def _first_difference(
    there: Mapping[str, Any], wanted: Mapping[str, Any], above: str = ""
) -> tuple[str, Any, Any] | None:
    """The dotted key of the first value of `wanted` that `there` has otherwise, and both."""
    for key, other in wanted.items():
        value = there.get(key)
        if value == other:
            continue
        if isinstance(value, dict) and isinstance(other, dict) and value.keys() == other.keys():
            return _first_difference(value, other, f"{above}{key}.")
        return f"{above}{key}", value, other
    return None


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


@dataclass(frozen=True)
class _Copy:
    """Bytes of a file that go to a place in memory."""

    begin: int  # in the file
    end: int
    into: Bytes


def read_tensors(
    checkpoint: str,
    tensors: Mapping[str, Tensor],
    headers: dict[str, list[TensorRows]] | None = None,
) -> None:
    """Fill the rows of `tensors` that this rank holds, in place; no other byte is kept.

    `headers` keeps what was read of the files for the next call, by path.

    Raises DamagedCheckpoint; ConfigError if `checkpoint` has no such tensors.
    """
    files = CheckpointManifest.read(checkpoint).files
    mine = {name: find_held(tensor) for name, tensor in tensors.items()}
    # Memory of the host, to read into: that of a tensor itself if it is there.
    hosts = {name: _on_host(local) for name, (local, _) in mine.items()}
    copies: dict[str, list[_Copy]] = defaultdict(list)
    missing = {name: _row_count(local) for name, (local, _) in mine.items()}
    paths = {
        storage.join(checkpoint, name): c for name, c in files.items() if name.endswith(SUFFIX)
    }
    with ThreadPoolExecutor(READERS) as threads:
        known = {} if headers is None else headers
        unread = [path for path in paths if path not in known]
        read = threads.map(_read_header, unread, [paths[path] for path in unread])
        known.update(zip(unread, read, strict=True))
        for path in paths:
            for rows in known[path]:
                if rows.name in mine:
                    local, first = mine[rows.name]
                    _check_kind(checkpoint, rows, local)
                    if copy := _overlap(rows, local, first, hosts[rows.name]):
                        copies[path].append(copy)
                        missing[rows.name] -= (copy.end - copy.begin) // _row_bytes(local)
        for name, count in missing.items():
            if count:
                raise ConfigError(
                    f"{checkpoint}: has no {name}, or not all of it; was it trained with another "
                    "optimizer?"
                )
        jobs = [job for path in copies for job in _by_chunk(path, paths[path], copies[path])]
        for _ in threads.map(_read_job, jobs):
            pass
    for name, (local, _) in mine.items():
        if local.device.type != "cpu" or not local.is_contiguous():
            local.copy_(hosts[name])


def _read_header(path: str, chunks: FileChunks) -> list[TensorRows]:
    header = next(chunks.chunks(), None)
    if header is None:
        raise DamagedCheckpoint(f"{path}: empty")
    return parse_header(path, read_chunk(path, *header).tobytes())


def _on_host(local: Tensor) -> Tensor:
    if local.device.type == "cpu" and local.is_contiguous():
        return local
    return torch.empty(local.shape, dtype=local.dtype)


def _row_count(local: Tensor) -> int:
    return (local.shape[0] if local.ndim else 1) if local.numel() else 0


def _row_bytes(local: Tensor) -> int:
    return local.nbytes // _row_count(local)


def _check_kind(checkpoint: str, rows: TensorRows, local: Tensor) -> None:
    if rows.dtype != local.dtype or rows.shape[1:] != tuple(local.shape[1:]):
        raise ConfigError(
            f"{checkpoint}: its {rows.name} is {rows.dtype} of rows {rows.shape[1:]}, this run's "
            f"{local.dtype} of {tuple(local.shape[1:])}"
        )


def _overlap(rows: TensorRows, local: Tensor, first: int, host: Tensor) -> _Copy | None:
    """What of `rows` is among the rows of `local`, of which `first` is the first."""
    begin = max(rows.first, first)
    end = min(rows.first + rows.count, first + _row_count(local))
    if begin >= end:
        return None
    each = _row_bytes(local)
    flat: Bytes = host.reshape(-1).view(torch.uint8).numpy()
    return _Copy(
        rows.begin + (begin - rows.first) * each,
        rows.begin + (end - rows.first) * each,
        flat[(begin - first) * each : (end - first) * each],
    )


@dataclass(frozen=True)
class _ReadJob:
    """One chunk of a file, and the copies that need some of it."""

    path: str
    chunk: tuple[int, int, str]
    copies: list[_Copy]


def _by_chunk(path: str, chunks: FileChunks, copies: list[_Copy]) -> list[_ReadJob]:
    """Each chunk that is needed, once."""
    jobs = []
    for chunk in chunks.chunks():
        begin, end, _ = chunk
        if needed := [each for each in copies if each.begin < end and begin < each.end]:
            jobs.append(_ReadJob(path, chunk, needed))
    if copies and max(each.end for each in copies) > chunks.bytes:
        raise DamagedCheckpoint(f"{path}: its header names bytes beyond its end")
    return jobs


def _read_job(job: _ReadJob) -> None:
    begin, end, _ = job.chunk
    data = read_chunk(job.path, *job.chunk)
    for copy in job.copies:
        low, high = max(copy.begin, begin), min(copy.end, end)
        copy.into[low - copy.begin : high - copy.begin] = data[low - begin : high - begin]
