"""Fully sharded data parallelism (FSDP2): each of several ranks keeps a slice of every parameter.

ZeRO stage 3 (Rajbhandari et al. 2020, arXiv:1910.02054), by torch's `fully_shard`. On a mesh of two
axes it is HSDP: sliced along the last, alike along the first; with slices of a whole, DDP.
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
from trainrig.models.lora.layers import LowRankEmbedding
from trainrig.models.moe import Experts
from trainrig.parallel.expert.dispatch import list_expert_layers
from trainrig.parallel.gradients.cast_weights import cast_weights, list_cast_units
from trainrig.parallel.gradients.joined import join_each
from trainrig.parallel.mesh import Axis
from trainrig.parallel.pipeline.stage import StageDecoder
from trainrig.parallel.precision import FLOAT32, Precision, find_stream_type, make_policy
from trainrig.tokens.batches import MicroBatchSlot


def shard(
    model: nn.Module,
    layers: Sequence[nn.Module],
    mesh: DeviceMesh,
    gather_once: bool = True,
    precision: Precision = FLOAT32,
    experts: DeviceMesh | None = None,
) -> FSDPModule:
    """Shard `model` in place: each of `layers` gathers by itself, and so do an embedding and a head
    that are two, the rest together; experts that are divided over ranks, over the mesh `experts`,
    apart from the rest of their layer.

    Gradients are *summed* over ranks: the loss of a micro-batch is already divided by the global
    batch's number of targets, so a mean over ranks would depend on how many there are.
    `gather_once`: a forward pass leaves its parameters gathered, for a backward pass to let go.
    """
    casts = make_policy(precision)
    for each in list_expert_layers(model) if experts else ():
        fully_shard(
            each.experts, mesh=experts, reshard_after_forward=not gather_once, mp_policy=casts
        )
    for layer in layers:
        fully_shard(layer, mesh=mesh, reshard_after_forward=not gather_once, mp_policy=casts)
    _shard_ends(model, mesh, gather_once, casts)
    # The rest is needed again at once.
    root = fully_shard(model, mesh=mesh, reshard_after_forward=False, mp_policy=casts)
    for module in list_units(model):
        module.set_force_sum_reduction_for_comms(True)  # gloo has no pre-multiplied sum
        over = experts if experts and isinstance(module, Experts) else mesh
        if over.size() > 1:  # one rank alone would divide by it, for nothing
            module.set_gradient_divide_factor(1.0)
    return root


def _shard_ends(
    model: nn.Module, mesh: DeviceMesh, gather_once: bool, casts: MixedPrecisionPolicy
) -> None:
    """Shard the embedding and the head of `model` by themselves, those that it has of them: the
    head is gathered while the layers before it compute, and its gradient is sent while they go
    backward."""
    if not isinstance(model, Decoder):
        return
    for name in model.config.shapes.ends_apart:
        end = getattr(model, name, None)
        if end is None:  # another stage of a pipeline has it
            continue
        # The gradient of logits is made of the head's weight at once, that of rows of none.
        again = name == "embedding" and not gather_once
        fully_shard(end, mesh=mesh, reshard_after_forward=again, mp_policy=casts)
        if name == "head":
            register_fsdp_forward_method(end, "finish_streams")
        elif not isinstance(end, LowRankEmbedding):  # which multiplies by one of its matrices
            end.set_unshard_in_backward(False)


def _stays_gathered(model: nn.Module | FSDPModule, unit: FSDPModule) -> bool:
    """Whether a forward pass of `model` always leaves the parameters of `unit` gathered."""
    return unit is model or unit is getattr(model, "head", None)


def leave_whole(
    model: nn.Module, layers: Sequence[nn.Module], precision: Precision = FLOAT32
) -> None:
    """Have `model`, which is not sharded (`needs_sharding`), compute in `precision`, and its
    gradients be those of a sharded one, to the bit; `layers`: of it."""
    if precision.casts:
        cast_weights(model, layers, find_stream_type(precision))
    else:
        join_each(layers)


def list_units(model: nn.Module | FSDPModule) -> list[FSDPModule]:
    """The parts of `model` whose parameters are sent together."""
    assert isinstance(model, nn.Module)
    return [module for module in model.modules() if isinstance(module, FSDPModule)]


def leave_copies(unit: FSDPModule) -> None:
    """Have FSDP add the gradients of `unit` over the slices of one copy of the model alone, and not
    those of the copies, which it can only add in an order of its own."""
    group = unit._get_fsdp_state()._fsdp_param_group
    if group is None or not isinstance(group.mesh_info, DDPMeshInfo):
        return
    mesh = group.mesh_info.mesh
    group.mesh_info = FSDPMeshInfo(mesh, shard_mesh_dim=mesh.ndim - 1)
    if group.post_forward_mesh_info is not None:
        group.post_forward_mesh_info = group.mesh_info


def reshard(model: nn.Module | FSDPModule) -> None:
    """Let go of gathered and of cast parameters, as after a whole step: until then they, not what
    is trained and saved, are those of `model`. After passes without a backward one FSDP keeps some
    for it."""
    for unit in list_units(model):
        unit.reshard()
    for each in list_cast_units(model):
        each.restore()


@contextmanager
def keep_gathered(model: nn.Module | FSDPModule, gather_once: bool) -> Iterator[None]:
    """All parameters of `model` are gathered to begin with, and forward passes leave them so: no
    pass sends anything, so ranks may make different numbers of them. Collective.

    `gather_once`: as `shard` was told. They stay gathered until they are resharded.
    """
    found = list_units(model)
    for each in list_cast_units(model):
        each.cast()
    for unit in found:
        unit.unshard()
        unit.set_reshard_after_forward(False, recurse=False)
    try:
        yield
    finally:
        for unit in found:
            again = not gather_once and not _stays_gathered(model, unit)
            unit.set_reshard_after_forward(again, recurse=False)


def find_local_slice(tensor: Tensor) -> tuple[Tensor, tuple[int, ...]]:
    """What of `tensor` this rank holds, not a copy, and where in the whole that begins, by
    dimension. Along an axis of size 1 nothing is cut."""
    if not isinstance(tensor, DTensor):
        return tensor.detach(), (0,) * tensor.ndim
    local = tensor.to_local().detach()
    size, first = compute_local_shape_and_global_offset(
        tensor.shape, tensor.device_mesh, tensor.placements
    )
    assert local.shape == size, f"{tuple(local.shape)}: not the {tuple(size)} expected"
    return local, tuple(first)


def count_copies(tensor: DTensor) -> int:
    """How many ranks hold the same slice of `tensor`."""
    mesh = tensor.device_mesh
    count = 1
    for axis, placement in enumerate(tensor.placements):
        count *= mesh.size(axis) if placement.is_replicate() else 1
    return count


class BackwardUnits:
    """The units of some models by the stage of a pipeline that they are of: a backward pass is that
    of one stage, and the other stages of this rank keep what they have added up."""

    def __init__(self, models: Sequence[nn.Module]) -> None:
        self._units = [
            (unit, find_stage(model, unit), id(unit) == id(model))
            for model in models
            for unit in list_units(model)
        ]
        self._cast = [unit for model in models for unit in list_cast_units(model)]

    def prepare(self, chunk: int, reduces: bool, last: bool, gather_once: bool) -> None:
        """Before a backward pass of stage `chunk`, its `last` of a step: whether its gradients are
        sent then. What is gathered for a step is let go after the last; of the ends of a model,
        which torch gathers for any pass, after that of the first stage, the last of all."""
        for unit, its_chunk, root in self._units:
            mine = its_chunk == chunk
            unit.set_requires_gradient_sync(mine and reduces, recurse=False)
            # Of slices that several ranks hold, once a step.
            unit.set_requires_all_reduce(mine and last, recurse=False)
            done = last and (chunk == 0 if root else mine)
            unit.set_reshard_after_backward(done or not gather_once, recurse=False)
        for each in self._cast:
            each.last = last

    def finish_pass(self, last: bool) -> None:
        """A backward pass is over: have with the parameters what it left with copies of them."""
        for each in self._cast:
            each.add_gradients()
            if last:
                each.restore()


def find_stage(model: nn.Module | FSDPModule, module: nn.Module | FSDPModule) -> int:
    """Which of this rank's stages of `model` has the parameters of `module`, a unit of it."""
    assert isinstance(module, nn.Module)
    return model.find_chunk(module) if isinstance(model, StageDecoder) else 0


class Gradients(Protocol):
    """How the gradients of the micro-batches of a step become those of its global batch."""

    def begin(self, micro_batches: int, virtual: int, measured: bool = False) -> None:
        """A step of so many micro-batches, of `virtual` virtual workers, begins; `measured`: for
        `compute_part_squared` after it."""
        ...

    def backward(self, loss: Tensor, slot: MicroBatchSlot, last: bool, chunk: int = 0) -> None:
        """Go backward from the `loss` of one micro-batch; `last`: of this rank's in the step.
        `chunk`: the one of its stages whose loss it is."""
        ...

    def finish(self) -> None:
        """Leave the sum over all ranks in the parameters' `grad`."""
        ...

    def compute_norm(self, parameters: Sequence[nn.Parameter]) -> Tensor:
        """The norm of that sum, of `parameters` alone, on every rank; float64. Nothing waits for it
        yet."""
        ...

    def compute_part_squared(self) -> Tensor | None:
        """The mean squared norm of what each virtual worker added to that sum, on every rank, which
        all call it; float64. None: it is not known."""
        ...


class SummedByRank:
    """Each rank adds up its own, and torch adds those of the ranks: fast, but the last bits depend
    on the number of ranks."""

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
        """`shared`: ranks that share layers; of a parameter whose `id` is in `alike` all of them
        have the same. `reduce_each`: each micro-batch's gradients are added and sliced unit by
        unit, in its own backward pass, so that no rank ever holds a whole one; else the step's.
        `stages`: ranks that have other layers of the model; `counted`: for which of the parameters
        that `compute_norm` is asked for this one counts, where another has them too."""
        self._units, self._gather_once = BackwardUnits(models), gather_once
        self._shared, self._alike = shared or Axis(), alike
        self._reduce_each = reduce_each
        self._stages, self._counted = stages, counted

    def begin(self, micro_batches: int, virtual: int, measured: bool = False) -> None:
        """See Gradients."""

    def backward(self, loss: Tensor, slot: MicroBatchSlot, last: bool, chunk: int = 0) -> None:
        """See Gradients."""
        self._units.prepare(chunk, last or self._reduce_each, last, self._gather_once)
        # One that is not real only joins the others' collectives.
        torch.autograd.backward(loss if slot.real else loss * 0.0)
        self._units.finish_pass(last)

    def finish(self) -> None:
        """See Gradients."""

    def compute_norm(self, parameters: Sequence[nn.Parameter]) -> Tensor:
        """See Gradients."""
        if self._shared.group is self._stages is None:
            return _compute_norm(parameters)
        if _are_sliced_apart(parameters):  # no stage has divided experts
            return _compute_norm_of_slices(parameters, self._alike, self._shared.size)
        counted = self._counted or [True] * len(parameters)
        mine = [each for each, own in zip(parameters, counted, strict=True) if own]
        own = _compute_norm([each for each in mine if id(each) not in self._alike])
        square = own.square().to(parameters[0].device)  # of none of them it is on the host
        if self._shared.group is not None:
            dist.all_reduce(square, group=self._shared.group)
        square += _compute_norm([each for each in mine if id(each) in self._alike]).square()
        if self._stages is not None:
            dist.all_reduce(square, group=self._stages)
        return square.sqrt()

    def compute_part_squared(self) -> Tensor | None:
        """See Gradients. A rank's part is added to the others' as soon as it is there."""
        return None


def _compute_norm(parameters: Sequence[nn.Parameter]) -> Tensor:
    """Of the gradients of `parameters`, of all their slices."""
    if _are_sliced_apart(parameters):
        return _compute_norm_of_slices(parameters)
    gradients = [each.grad for each in parameters if each.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients)
    return (norm.full_tensor() if isinstance(norm, DTensor) else norm).double()


def _are_sliced_apart(parameters: Sequence[nn.Parameter]) -> bool:
    """Whether their gradients are sliced over ranks in several ways."""
    gradients = (each.grad for each in parameters)
    return len({each.device_mesh for each in gradients if isinstance(each, DTensor)}) > 1


def _compute_norm_of_slices(
    parameters: Sequence[nn.Parameter], alike: Set[int] = frozenset(), sharing: int = 1
) -> Tensor:
    """The norm of the gradients of all `parameters`, sliced over ranks in several ways; its last
    bits depend on how. `alike`: of which `sharing` ranks that share layers have the same. Every
    rank must call it; it sends 8 bytes."""
    total = torch.zeros((), dtype=torch.float64, device=parameters[0].device)
    for each in parameters:
        if each.grad is None:
            continue
        assert isinstance(each.grad, DTensor)
        norm = torch.linalg.vector_norm(each.grad.to_local(), dtype=torch.float64)
        held = count_copies(each.grad) * (sharing if id(each) in alike else 1)
        total += norm.square() / held
    dist.all_reduce(total)
    return total.sqrt()
