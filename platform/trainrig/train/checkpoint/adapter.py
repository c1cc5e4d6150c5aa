"""Checkpoints that hold only an adapter: tensors `adapter.NAME` and their optimizer state.

The base model is another checkpoint, which checkpoint_metadata.py records by path and checksum.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from trainrig.errors import ConfigError, DataError, TrainrigError
from trainrig.models.decoder import DecoderConfig
from trainrig.models.lora import (
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
from trainrig.parallel.sharding.gradient_norm import sum_rows
from trainrig.train.checkpoint import reader
from trainrig.train.checkpoint.checkpoint_metadata import OpenedCheckpoint, check_base
from trainrig.train.state import TrainState
from trainrig.train.training_job import Adapter, TrainingJob


def load_base(state: TrainState, job: TrainingJob) -> None:
    """Fill the frozen weights of `state` from the base checkpoint of the job's adapter.

    Also sets the adapter's values that depend on the base, such as the magnitudes of DoRA.
    Collective: every rank must call it. Raises ConfigError if the base has another model than the
    job, or has changed since the adapter was created.
    """
    adapter = job.adapter
    assert adapter is not None

    def read_base() -> OpenedCheckpoint:
        check_base(adapter)
        return OpenedCheckpoint.read(adapter.base)

    opened = reader.read_on_first(adapter.base, read_base)

    def read() -> None:
        reader.check_start(adapter.base, opened.entries, job.model)
        fresh = reader.find_fresh_parameters(opened.entries, job.model)
        there = dict(state.model.named_parameters())  # only some of them on a pipeline stage
        for name in fresh:
            if name in there:
                reader.draw_parameter(state.model, name, job.model, job.training.seed)
        problem: TrainrigError | None = None
        for names in _group_by_layer(state.model).values():
            read_names = [name for name in names if name not in fresh]
            problem = _read_frozen(opened, state, read_names, problem)
        if problem:
            raise problem

    reader.read_together(adapter.base, read)


def _group_by_layer(model: nn.Module) -> dict[str, list[str]]:
    """Return the names of the frozen weights, grouped by layer.

    Weights of a group are read together, and held in float32 next to the model meanwhile.
    """
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
    """Fill the frozen weights `names`, unless there was a `problem` before; return the problem.

    With a problem, this rank still takes part in the exchange of columns among ranks that share
    layers.
    """
    parameters = dict(state.model.named_parameters())
    values = {
        name: parameters[name]
        if parameters[name].dtype == torch.float32
        else _allocate_float32(parameters[name])
        for name in names
    }
    wanted = {f"model.{n}": state.whole(n, value.detach()) for n, value in values.items()}
    rows = state.rows(wanted, filled=False)
    if not problem:
        try:
            reader.read_tensors(opened.path, rows, opened.manifest)
        except TrainrigError as error:
            problem = error
    state.take_rows(rows, wanted)
    for name, value in values.items():
        _hold(state, name, value, parameters)
    return problem


def _hold(state: TrainState, name: str, value: Tensor, parameters: Mapping[str, Tensor]) -> None:
    """Convert `value` to the dtype of the frozen weight `name`, and store it there.

    Also sets the quantisation scales and the adapter's magnitude that depend on it.
    """
    path, _, last = name.rpartition(".")
    local = _to_local(value)
    shared = state.shared
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
        squares = sum_rows(local)  # bit-identical on any slice
        squares = shared.combine_columns(name, squares) if shared else squares
        _to_local(magnitude).copy_(squares.sqrt())


def _allocate_float32(parameter: Tensor) -> Tensor:
    """Allocate a float32 tensor of the shape and sharding of `parameter`."""
    if not isinstance(parameter, DTensor):
        return torch.empty(parameter.shape)
    local = torch.empty(parameter.to_local().shape, device=parameter.device)
    return lay_out_like(local, parameter)


def _to_local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


@dataclass(frozen=True)
class OpenAdapter:
    """Adapter of a checkpoint, with complete tensors on the CPU."""

    of: Adapter
    tensors: dict[str, Tensor]  # keyed by the model's parameter names


def open_adapter(checkpoint: str, adapter: Adapter, config: DecoderConfig) -> OpenAdapter:
    """Read the tensors of the adapter in `checkpoint`."""
    shapes = list_adapter_shapes(config, adapter.lora)
    tensors = {f"adapter.{name}": torch.empty(shape) for name, shape in shapes.items()}
    reader.read_tensors(checkpoint, tensors)
    return OpenAdapter(adapter, {n.removeprefix("adapter."): t for n, t in tensors.items()})


def merge_weight(opened: OpenAdapter, name: str, weight: Tensor) -> Tensor:
    """Return a float32 weight of the base with the adapter merged in.

    The base is rounded as it was held during training, in bfloat16 or int8. A weight that the
    adapter holds itself is returned instead of the base's.
    """
    lora = opened.of.lora
    if name in opened.tensors:  # a head that is trained without an adapter
        return opened.tensors[name]
    path, _, _ = name.rpartition(".")
    own = {n: t for n, t in opened.tensors.items() if n.rpartition(".")[0] == path}
    plain = {name: round_to_base(name, weight, lora.base)}
    return merge(plain, own if name.endswith(".weight") else {}, lora)[name]


def require_base(adapter: Adapter) -> None:
    """Raise DataError unless the base of `adapter` exists and is unchanged."""
    try:
        check_base(adapter)
    except ConfigError as problem:
        raise DataError(str(problem)) from None
