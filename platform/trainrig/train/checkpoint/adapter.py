"""Checkpoints that hold an adapter alone: `adapter.NAME` and their optimizer's memory.

The base is another checkpoint, which adapter_entries.py knows by path and sum.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from trainrig.errors import ConfigError, DataError, TrainrigError
from trainrig.models.decoder import DecoderConfig
from trainrig.models.lora.layers import (
    SCALES,
    TRAINED,
    compute_row_maxima,
    list_adapter_shapes,
    merge,
    quantise,
    restore,
    round_to_base,
)
from trainrig.optim.elementwise import lay_out_like
from trainrig.parallel.norm import sum_rows
from trainrig.train.checkpoint.adapter_entries import check_base
from trainrig.train.checkpoint.found import OpenedCheckpoint
from trainrig.train.checkpoint.reader import (
    check_start,
    draw_parameter,
    find_fresh_parameters,
    read_on_first,
    read_tensors,
    read_together,
)
from trainrig.train.job import Adapter, TrainingJob
from trainrig.train.state import TrainState


def load_base(state: TrainState, job: TrainingJob) -> None:
    """Fill the frozen weights of `state` from the base of the job's adapter, and what of the
    adapter begins with them. Every rank must call it.

    Raises ConfigError if the base is of another model, or is no longer what the job names.
    """
    adapter = job.adapter
    assert adapter is not None

    def read_base() -> OpenedCheckpoint:
        check_base(adapter)
        return OpenedCheckpoint.read(adapter.base)

    opened = read_on_first(adapter.base, read_base)

    def read() -> None:
        check_start(adapter.base, opened.entries, job.model)
        fresh = find_fresh_parameters(opened.entries, job.model)
        there = dict(state.model.named_parameters())  # of a stage of the model, some
        for name in fresh:
            if name in there:
                draw_parameter(state.model, name, job.model, job.training.seed)
        problem: TrainrigError | None = None
        for names in _group_by_layer(state.model).values():
            read_names = [name for name in names if name not in fresh]
            problem = _read_frozen(opened, state, read_names, problem)
        if problem:
            raise problem

    read_together(adapter.base, read)


def _group_by_layer(model: nn.Module) -> dict[str, list[str]]:
    """Names of the frozen weights, those of a layer together: what is read at once is held in
    float32 beside them."""
    groups: dict[str, list[str]] = defaultdict(list)
    for name, _ in model.named_parameters():
        if name.rpartition(".")[2] not in (*TRAINED, SCALES):
            parts = name.split(".")
            groups[".".join(parts[:2]) if parts[0] == "layers" else ""].append(name)
    return groups


@torch.no_grad()
def _read_frozen(
    opened: OpenedCheckpoint, state: TrainState, names: list[str], problem: TrainrigError | None
) -> TrainrigError | None:
    """Fill the frozen weights `names`, unless there was a `problem` before; what there is now. With
    one, too, this rank does its part where ranks that share layers send each other columns."""
    parameters = dict(state.model.named_parameters())
    values = {
        name: parameters[name]
        if _is_float32(parameters[name])
        else _allocate_float32(parameters[name])
        for name in names
    }
    wanted = {f"model.{n}": state.whole(n, value.detach()) for n, value in values.items()}
    rows = state.rows(wanted, filled=False)
    if not problem:
        try:
            read_tensors(opened.path, rows, opened.manifest)
        except TrainrigError as error:
            problem = error
    state.take_rows(rows, wanted)
    for name, value in values.items():
        _hold(state, name, value, parameters)
    return problem


def _hold(state: TrainState, name: str, value: Tensor, parameters: Mapping[str, Tensor]) -> None:
    """Have the frozen weight `name` be what was read into `value`, in its own numbers; and what of
    its adapter begins with it."""
    path, _, last = name.rpartition(".")
    local, shared = _to_local(value), state.shared
    scales = parameters.get(f"{path}.{SCALES}") if last == "weight" else None
    if scales is not None:
        largest = compute_row_maxima(local)
        largest = shared.combine_columns(name, largest, largest=True) if shared else largest
        rounded, by_row = quantise(local, largest)
        _to_local(parameters[name]).copy_(rounded)
        _to_local(scales).copy_(by_row)
        local = restore(rounded, by_row)
    elif value is not parameters[name]:
        _to_local(parameters[name]).copy_(local)
        local = _to_local(parameters[name]).float()
    if last == "weight" and (magnitude := parameters.get(f"{path}.magnitude")) is not None:
        squares = sum_rows(local)  # the same bits on any slice
        squares = shared.combine_columns(name, squares) if shared else squares
        _to_local(magnitude).copy_(squares.sqrt())


def _is_float32(parameter: Tensor) -> bool:
    return parameter.dtype == torch.float32


def _allocate_float32(parameter: Tensor) -> Tensor:
    """Room for `parameter` in float32, sharded as it is."""
    if not isinstance(parameter, DTensor):
        return torch.empty(parameter.shape)
    local = torch.empty(parameter.to_local().shape, device=parameter.device)
    return lay_out_like(local, parameter)


def _to_local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


@dataclass(frozen=True)
class OpenAdapter:
    """The adapter of a checkpoint, whole and on the CPU."""

    of: Adapter
    tensors: dict[str, Tensor]  # by the model's own names


def open_adapter(checkpoint: str, adapter: Adapter, config: DecoderConfig) -> OpenAdapter:
    """The tensors of the adapter in `checkpoint`."""
    shapes = list_adapter_shapes(config, adapter.lora)
    tensors = {f"adapter.{name}": torch.empty(shape) for name, shape in shapes.items()}
    read_tensors(checkpoint, tensors)
    return OpenAdapter(adapter, {n.removeprefix("adapter."): t for n, t in tensors.items()})


def merge_weight(opened: OpenAdapter, name: str, weight: Tensor) -> Tensor:
    """A tensor of the base, float32, with the adapter in it, or the adapter's own; the base
    as it was trained on: rounded if it was held in bfloat16 or int8."""
    lora = opened.of.lora
    if name in opened.tensors:  # a head that is trained whole
        return opened.tensors[name]
    path, _, _ = name.rpartition(".")
    own = {n: t for n, t in opened.tensors.items() if n.rpartition(".")[0] == path}
    plain = {name: round_to_base(name, weight, lora.base)}
    return merge(plain, own if name.endswith(".weight") else {}, lora)[name]


def require_base(adapter: Adapter) -> None:
    """Raise DataError unless the base of `adapter` is there, and is what it was."""
    try:
        check_base(adapter)
    except ConfigError as problem:
        raise DataError(str(problem)) from None
