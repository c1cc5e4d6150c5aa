"""Fully sharded data parallelism (FSDP2): each rank keeps a slice of every parameter.

ZeRO stage 3 (Rajbhandari et al. 2020, arXiv:1910.02054), with torch's `fully_shard`. On a mesh of
two axes it is HSDP: parameters are sliced along the last axis and replicated along the first. If
the last axis has size 1, each rank has whole parameters: this is DDP.

- A *unit* is a module whose parameters FSDP gathers together.
- A *copy* of the model is the ranks that together hold each parameter once.
- A *chunk* is the number of a pipeline stage among the stages of one rank, from 0.
- A *virtual worker* is a fixed share of a step's micro-batches. The number of virtual workers is a
  setting, so sums over them do not depend on the number of ranks.
"""

from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    FSDPModule,
    MixedPrecisionPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.fsdp._fully_shard._fsdp_common import DDPMeshInfo, FSDPMeshInfo
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from trainrig.models.decoder import Decoder
from trainrig.models.lora import LowRankEmbedding
from trainrig.models.moe import Experts
from trainrig.parallel.axes.expert_dispatch import list_expert_layers
from trainrig.parallel.axes.pipeline_stage import StageDecoder
from trainrig.parallel.mesh import Axis
from trainrig.parallel.precision import FLOAT32, Precision, find_stream_type, make_policy
from trainrig.parallel.sharding.cast_weights import (
    cast_weights,
    join_input_gradients,
    list_cast_units,
)
from trainrig.tokens.batches import MicroBatchSlot


def shard(
    model: nn.Module,
    layers: Sequence[nn.Module],
    mesh: DeviceMesh,
    gather_once: bool = True,
    precision: Precision = FLOAT32,
    experts: DeviceMesh | None = None,
) -> FSDPModule:
    """Shard `model` in place with FSDP2.

    Each of `layers` is one unit. The embedding and the head are units too if they do not share
    parameters. The *root unit* is `model` itself, with all other parameters. Experts that are
    divided over ranks are sharded over the mesh `experts`, apart from the rest of their layer.

    Gradients are *summed* over ranks: the loss of a micro-batch is already divided by the global
    batch's number of targets, so a mean over ranks would depend on the number of ranks.
    `gather_once`: parameters are gathered once a step, and freed after its last backward pass;
    otherwise they are freed after each pass (see `BackwardUnits.prepare`).
    """
    casts = make_policy(precision)
    for expert_layer in list_expert_layers(model) if experts else ():
        fully_shard(
            expert_layer.experts,
            mesh=experts,
            reshard_after_forward=not gather_once,
            mp_policy=casts,
        )
    for layer in layers:
        fully_shard(layer, mesh=mesh, reshard_after_forward=not gather_once, mp_policy=casts)
    _shard_ends(model, mesh, gather_once, casts)
    # The backward pass begins with the root unit, so it stays gathered.
    root = fully_shard(model, mesh=mesh, reshard_after_forward=False, mp_policy=casts)
    for module in list_units(model):
        module.set_force_sum_reduction_for_comms(True)  # gloo does not support pre-multiplied sums
        unit_mesh = experts if experts and isinstance(module, Experts) else mesh
        # One rank sums nothing, and a factor would cost a pass over the gradients.
        if unit_mesh.size() > 1:
            module.set_gradient_divide_factor(1.0)
    return root


def _shard_ends(
    model: nn.Module, mesh: DeviceMesh, gather_once: bool, casts: MixedPrecisionPolicy
) -> None:
    """Shard the embedding and the head of `model` as separate units, if they share no parameters.

    The head is gathered while the layers before it compute, and its gradient is sent during their
    backward passes.
    """
    if not isinstance(model, Decoder):
        return
    for name in model.config.shapes.ends_apart:
        end = getattr(model, name, None)
        if end is None:  # another pipeline stage holds it
            continue
        # The backward pass begins with the head, so a forward pass frees only the embedding.
        frees = name == "embedding" and not gather_once
        fully_shard(end, mesh=mesh, reshard_after_forward=frees, mp_policy=casts)
        if name == "head":
            register_fsdp_forward_method(end, "finish_streams")
        # The backward pass of an embedding needs no weight, unless it is a low-rank one.
        elif not isinstance(end, LowRankEmbedding):
            end.set_unshard_in_backward(False)


def _stays_gathered(model: nn.Module | FSDPModule, unit: FSDPModule) -> bool:
    """Return whether a forward pass of `model` always leaves the parameters of `unit` gathered."""
    return unit is model or unit is getattr(model, "head", None)


def prepare_unsharded(
    model: nn.Module, layers: Sequence[nn.Module], precision: Precision = FLOAT32
) -> None:
    """Make an unsharded `model` compute in `precision`, with gradients bit-identical to FSDP's.

    `layers` are the layers of `model`. Use this where `layout.needs_sharding` returns False.
    """
    if precision.casts:
        cast_weights(model, layers, find_stream_type(precision))
    else:
        join_input_gradients(layers)


def list_units(model: nn.Module | FSDPModule) -> list[FSDPModule]:
    """Return the FSDP units of `model`: the modules whose parameters are sent together."""
    assert isinstance(model, nn.Module)
    return [module for module in model.modules() if isinstance(module, FSDPModule)]


def reduce_within_copy(unit: FSDPModule) -> None:
    """Make FSDP add the gradients of `unit` over the slices of one copy of the model only.

    The gradients of the copies are then added elsewhere, because FSDP can add them only in an order
    of its own.
    """
    group = unit._get_fsdp_state()._fsdp_param_group
    if group is None or not isinstance(group.mesh_info, DDPMeshInfo):
        return
    mesh = group.mesh_info.mesh
    group.mesh_info = FSDPMeshInfo(mesh, shard_mesh_dim=mesh.ndim - 1)
    if group.post_forward_mesh_info is not None:
        group.post_forward_mesh_info = group.mesh_info


def reshard(model: nn.Module | FSDPModule) -> None:
    """Free the gathered and the cast parameters of `model`, as at the end of a step.

    Until then, the parameters of `model` are those temporary tensors and not the ones that are
    trained and saved. After forward passes without a backward pass, FSDP keeps some of them
    gathered.
    """
    for unit in list_units(model):
        unit.reshard()
    for cast_unit in list_cast_units(model):
        cast_unit.restore()


@contextmanager
def keep_gathered(model: nn.Module | FSDPModule, gather_once: bool) -> Iterator[None]:
    """Gather all parameters of `model`, and let no forward pass in the block free them. Collective.

    Forward passes in the block send nothing, so ranks may run different numbers of them. The end of
    the block frees nothing: call `reshard`. `gather_once` must be the value given to `shard`.
    """
    units = list_units(model)
    for cast_unit in list_cast_units(model):
        cast_unit.cast()
    for unit in units:
        unit.unshard()
        unit.set_reshard_after_forward(False, recurse=False)
    try:
        yield
    finally:
        for unit in units:
            frees = not gather_once and not _stays_gathered(model, unit)
            unit.set_reshard_after_forward(frees, recurse=False)


def find_local_slice(tensor: Tensor) -> tuple[Tensor, tuple[int, ...]]:
    """Return this rank's slice of `tensor` as a view, and the slice's offset in each dimension.

    Nothing is sliced along a mesh axis of size 1.
    """
    if not isinstance(tensor, DTensor):
        return tensor.detach(), (0,) * tensor.ndim
    local = tensor.to_local().detach()
    size, first = compute_local_shape_and_global_offset(
        tensor.shape, tensor.device_mesh, tensor.placements
    )
    assert local.shape == size, f"{tuple(local.shape)}: not the {tuple(size)} expected"
    return local, tuple(first)


def count_copies(tensor: DTensor) -> int:
    """Return the number of ranks that hold the same slice of `tensor`."""
    mesh = tensor.device_mesh
    count = 1
    for axis, placement in enumerate(tensor.placements):
        count *= mesh.size(axis) if placement.is_replicate() else 1
    return count


class BackwardUnits:
    """FSDP units of a rank's models, with the pipeline stage (chunk) that each unit belongs to.

    A backward pass runs one chunk, and the other chunks keep the gradients they have accumulated.
    """

    def __init__(self, models: Sequence[nn.Module]) -> None:
        self._units = [
            (unit, find_stage(model, unit), id(unit) == id(model))
            for model in models
            for unit in list_units(model)
        ]
        self._cast = [unit for model in models for unit in list_cast_units(model)]

    def prepare(self, chunk: int, reduces: bool, last: bool, gather_once: bool) -> None:
        """Configure all units for a backward pass of `chunk`.

        `reduces`: the pass sends its gradients. `last`: it is the step's last pass of the chunk.
        With `gather_once`, units are freed after the last pass of their chunk. Torch gathers the
        root unit for every pass, so it is freed after the last pass of chunk 0, which ends a step.
        """
        for unit, unit_chunk, root in self._units:
            mine = unit_chunk == chunk
            unit.set_requires_gradient_sync(mine and reduces, recurse=False)
            # Gradients are added over the copies of the model once a step.
            unit.set_requires_all_reduce(mine and last, recurse=False)
            done = last and (chunk == 0 if root else mine)
            unit.set_reshard_after_backward(done or not gather_once, recurse=False)
        for cast_unit in self._cast:
            cast_unit.last = last

    def finish_pass(self, last: bool) -> None:
        """Move the gradients that a backward pass left with cast copies to the parameters."""
        for unit in self._cast:
            unit.add_gradients()
            if last:
                unit.restore()


def find_stage(model: nn.Module | FSDPModule, module: nn.Module | FSDPModule) -> int:
    """Return the chunk of `model` that holds the unit `module`; 0 without a pipeline."""
    assert isinstance(module, nn.Module)
    return model.find_chunk(module) if isinstance(model, StageDecoder) else 0


class Gradients(Protocol):
    """Protocol for turning the gradients of micro-batches into the global batch's gradients."""

    def begin(self, micro_batches: int, virtual: int, measured: bool = False) -> None:
        """Begin a step of `micro_batches` micro-batches of this rank and `virtual` virtual workers.

        `measured`: `compute_part_squared` will be called after the step.
        """
        ...

    def backward(self, loss: Tensor, slot: MicroBatchSlot, last: bool, chunk: int = 0) -> None:
        """Run the backward pass from the `loss` of one micro-batch.

        `last`: it is this rank's last micro-batch of the step. `chunk`: stage of this rank that the
        loss belongs to.
        """
        ...

    def finish(self) -> None:
        """Leave the sum over all ranks in the parameters' `grad`."""
        ...

    def compute_norm(self, parameters: Sequence[nn.Parameter]) -> Tensor:
        """Return the norm of the summed gradients of `parameters` on every rank: a float64 scalar.

        A GPU may still compute the value when this returns.
        """
        ...

    def compute_part_squared(self) -> Tensor | None:
        """Return the mean squared norm of the virtual workers' own gradients.

        A float64 scalar on every rank for the gradient noise scale, or None if it is not known.
        Collective.
        """
        ...


class SummedByRank:
    """Gradients that each rank accumulates itself and torch then reduces over ranks.

    Fast, but the last bits depend on the number of ranks.
    """

    def __init__(
        self,
        models: Sequence[nn.Module],
        gather_once: bool,
        shared: Axis | None = None,
        alike: Set[int] = frozenset(),
        reduce_each: bool = False,
        stages: dist.ProcessGroup | None = None,
        counted: Sequence[bool] | None = None,
    ) -> None:
        """Prepare the units of `models`.

        Args:
            models: The models that this rank trains.
            gather_once: The value given to `shard`.
            shared: Ranks that each hold a part of the same layers (tensor parallelism).
            alike: The `id` of each parameter that all ranks of `shared` hold whole.
            reduce_each: Whether each micro-batch's gradients are reduced and sliced unit by unit in
                its own backward pass, so that no rank ever holds a whole gradient; otherwise once a
                step.
            stages: Ranks that hold the other stages of a pipeline, and this rank.
            counted: For each parameter given to `compute_norm`, whether this rank counts it;
                another rank counts the others.
        """
        self._units = BackwardUnits(models)
        self._gather_once = gather_once
        self._shared = shared or Axis()
        self._alike = alike
        self._reduce_each = reduce_each
        self._stages = stages
        self._counted = counted

    def begin(self, micro_batches: int, virtual: int, measured: bool = False) -> None:
        """Do nothing: there is no state of a step. See `Gradients.begin`."""

    def backward(self, loss: Tensor, slot: MicroBatchSlot, last: bool, chunk: int = 0) -> None:
        """Run a backward pass, and reduce where due. See `Gradients.backward`."""
        self._units.prepare(chunk, last or self._reduce_each, last, self._gather_once)
        # A padding micro-batch only joins the collectives of the others.
        torch.autograd.backward(loss if slot.real else loss * 0.0)
        self._units.finish_pass(last)

    def finish(self) -> None:
        """Do nothing: torch reduced in the last backward pass. See `Gradients.finish`."""

    def compute_norm(self, parameters: Sequence[nn.Parameter]) -> Tensor:
        """Return the norm of the summed gradients. See `Gradients.compute_norm`."""
        if self._shared.group is None and self._stages is None:
            return _compute_norm(parameters)
        if _are_sliced_apart(parameters):  # expert parallelism, which excludes a pipeline
            return _compute_norm_of_slices(parameters, self._alike, self._shared.size)
        counted = self._counted or [True] * len(parameters)
        mine = [parameter for parameter, own in zip(parameters, counted, strict=True) if own]
        own = _compute_norm([parameter for parameter in mine if id(parameter) not in self._alike])
        # The norm of an empty list of tensors is on the CPU.
        square = own.square().to(parameters[0].device)
        if self._shared.group is not None:
            dist.all_reduce(square, group=self._shared.group)
        square += _compute_norm(
            [parameter for parameter in mine if id(parameter) in self._alike]
        ).square()
        if self._stages is not None:
            dist.all_reduce(square, group=self._stages)
        return square.sqrt()

    def compute_part_squared(self) -> Tensor | None:
        """Return None: each rank's part is added to the others' at once. See `Gradients`."""
        return None


def _compute_norm(parameters: Sequence[nn.Parameter]) -> Tensor:
    """Return the norm of the gradients of `parameters`, over all their slices."""
    if _are_sliced_apart(parameters):
        return _compute_norm_of_slices(parameters)
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients)
    return (norm.full_tensor() if isinstance(norm, DTensor) else norm).double()


def _are_sliced_apart(parameters: Sequence[nn.Parameter]) -> bool:
    """Return whether the gradients of `parameters` are sliced over more than one mesh."""
    gradients = (parameter.grad for parameter in parameters)
    return (
        len({gradient.device_mesh for gradient in gradients if isinstance(gradient, DTensor)}) > 1
    )


def _compute_norm_of_slices(
    parameters: Sequence[nn.Parameter], alike: Set[int] = frozenset(), tensor_ranks: int = 1
) -> Tensor:
    """Return the norm of gradients that are sliced over several meshes.

    The last bits depend on the slicing. `alike`: the `id` of each parameter that all of `sharing`
    tensor-parallel ranks hold whole. Collective; sends 8 bytes.
    """
    total = torch.zeros((), dtype=torch.float64, device=parameters[0].device)
    for parameter in parameters:
        if parameter.grad is None:
            continue
        assert isinstance(parameter.grad, DTensor)
        norm = torch.linalg.vector_norm(parameter.grad.to_local(), dtype=torch.float64)
        copies = count_copies(parameter.grad) * (tensor_ranks if id(parameter) in alike else 1)
        total += norm.square() / copies
    dist.all_reduce(total)
    return total.sqrt()
