"""Steps of Adafactor and Muon on sharded tensors, with the same bits at any number of ranks.

Each tensor has an owner rank. All ranks send their rows to the owner, which computes with the whole
tensor and sends each rank its rows of the results, so sharding never splits a sum. Tensors are
processed in rounds of one per rank: a rank holds one whole tensor at a time, and the ranks share
the work.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor import zeros as sharded_zeros

from trainrig.optim.elementwise import to_local
from trainrig.optim.optimizer_settings import OptimizerSettings
from trainrig.optim.parameter_groups import ParameterGroup


@dataclass(frozen=True)
class Rows:
    """This rank's rows of a float32 tensor that is sliced along dimension 0 over ranks."""

    local: Tensor
    count: int  # number of rows of the whole tensor

    @classmethod
    def of(cls, tensor: Tensor) -> "Rows":
        """Return this rank's rows of `tensor` without a copy."""
        return cls(to_local(tensor), tensor.shape[0] if tensor.ndim else 1)

    def share(self, rank: int, world: int) -> int:
        """Return how many rows `rank` holds, with FSDP's division."""
        rows = -(-self.count // world)
        return min(rows, self.count - min(self.count, rank * rows))

    @property
    def width(self) -> int:
        """Number of elements in a row."""
        return math.prod(self.local.shape[1:])

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole tensor."""
        return (self.count, *self.local.shape[1:]) if self.local.ndim else ()


@dataclass(frozen=True)
class WholeTask:
    """Computation of an owner: whole inputs to whole outputs, of which each rank gets its rows."""

    inputs: Sequence[Rows]
    outputs: Sequence[Rows]
    compute: Callable[..., Sequence[Tensor]]


def split_into_rounds(parameters: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Yield `parameters`, largest first, in groups of one for each rank."""
    ordered = sorted(parameters, key=lambda parameter: -parameter.numel())
    if ordered:
        group = _find_group(ordered[0])
        many = dist.get_world_size(group) if group else 1
        yield from (ordered[at : at + many] for at in range(0, len(ordered), many))


def compute_whole(like: Tensor, tasks: Sequence[WholeTask]) -> None:
    """Fill the outputs of `tasks`, at most one per rank. Collective.

    `like`: a parameter that is sliced as the tasks' tensors are.
    """
    group = _find_group(like)
    if group is None or dist.get_world_size(group) == 1:
        for task in tasks:
            # Inputs are copied, as for an owner: kernels may round by the alignment of memory.
            found = task.compute(*(rows.local.clone() for rows in task.inputs))
            for rows, whole in zip(task.outputs, found, strict=True):
                rows.local.copy_(whole)
        return
    rank = dist.get_rank(group)
    world = dist.get_world_size(group)
    mine = tasks[rank] if rank < len(tasks) else None
    sent = [[rows.local for rows in task.inputs] for task in tasks]
    received = _exchange(sent, mine.inputs if mine else (), group)
    outgoing: list[list[Tensor]] = [[] for _ in range(world)]
    if mine:
        wholes = [
            torch.cat([pieces[number].view(-1) for pieces in received]).view(rows.shape)
            for number, rows in enumerate(mine.inputs)
        ]
        found = mine.compute(*wholes)
        for rows, whole in zip(mine.outputs, found, strict=True):
            cuts = [rows.share(peer, world) for peer in range(world)]
            for pieces, piece in zip(outgoing, torch.split(whole, cuts), strict=True):
                pieces.append(piece)
    _return_outputs(outgoing, tasks, group)


def _exchange(
    sent: Sequence[Sequence[Tensor]], inputs: Sequence[Rows], group: dist.ProcessGroup
) -> list[list[Tensor]]:
    """Send the tensors `sent[owner]` to each owner, and return, by rank, the received `inputs`."""
    world = dist.get_world_size(group)
    sizes = [[rows.share(peer, world) * rows.width for rows in inputs] for peer in range(world)]
    flat = _all_to_all(_pad_lists(sent, world), [sum(own) for own in sizes], group)
    parts = torch.split(flat, [size for own in sizes for size in own])
    many = len(inputs)
    return [list(parts[peer * many : (peer + 1) * many]) for peer in range(world)]


def _return_outputs(
    outgoing: Sequence[Sequence[Tensor]], tasks: Sequence[WholeTask], group: dist.ProcessGroup
) -> None:
    """Send each rank its rows of this rank's results, and receive this rank's rows of all tasks."""
    world = dist.get_world_size(group)
    sizes = [sum(rows.local.numel() for rows in task.outputs) for task in tasks]
    flat = _all_to_all(_pad_lists(outgoing, world), sizes + [0] * (world - len(tasks)), group)
    rows_in_order = [rows for task in tasks for rows in task.outputs]
    pieces = torch.split(flat, [rows.local.numel() for rows in rows_in_order])
    for rows, piece in zip(rows_in_order, pieces, strict=True):
        rows.local.copy_(piece.view(rows.local.shape))


def _pad_lists(lists: Sequence[Sequence[Tensor]], world: int) -> list[Sequence[Tensor]]:
    return [*lists, *([()] * (world - len(lists)))]


def _all_to_all(
    sent: Sequence[Sequence[Tensor]], sizes: list[int], group: dist.ProcessGroup
) -> Tensor:
    """Send each rank its tensors, and return the received ones, flat and in the order of ranks."""
    flats = [[tensor.reshape(-1) for tensor in tensors] for tensors in sent]
    everything = [tensor for tensors in flats for tensor in tensors]
    device = everything[0].device if everything else torch.device("cpu")
    if not everything and dist.get_backend(group) == "nccl":
        device = torch.device("cuda", torch.cuda.current_device())
    outgoing = torch.cat(everything) if everything else torch.empty(0, device=device)
    incoming = torch.empty(sum(sizes), device=device)
    counts = [sum(tensor.numel() for tensor in tensors) for tensors in flats]
    dist.all_to_all_single(incoming, outgoing, sizes, counts, group=group)
    return incoming


def _find_group(tensor: Tensor) -> dist.ProcessGroup | None:
    """Return the group of ranks over which `tensor` is sliced; None if it is whole on this rank."""
    if not isinstance(tensor, DTensor):
        return None
    for axis, placement in enumerate(tensor.placements):
        if placement.is_shard(0):
            return tensor.device_mesh.get_group(axis)
    return None


class WholeTensorSteps(torch.optim.Optimizer, ABC):
    """Base of optimizers that need whole tensors, which are updated in rounds of one per rank."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Take one step on every parameter that has a gradient."""
        for group in self.param_groups:
            for parameters in split_into_rounds(p for p in group["params"] if p.grad is not None):
                tasks = [self.build_task(parameter, group) for parameter in parameters]
                compute_whole(parameters[0], tasks)
                for parameter, task in zip(parameters, tasks, strict=True):
                    self.update(parameter, task.outputs, group)

    @abstractmethod
    def build_task(self, parameter: Tensor, group: ParameterGroup) -> WholeTask:
        """Return the owner's computation for `parameter`, which has a gradient.

        Creates the state of a parameter without one.
        """

    @abstractmethod
    def update(self, parameter: Tensor, outputs: Sequence[Rows], group: ParameterGroup) -> None:
        """Change this rank's rows of `parameter` in place, given its rows of the results."""


AVERAGES = ("exp_avg_sq_row", "exp_avg_sq_col", "exp_avg_sq")


class AdafactorSteps(WholeTensorSteps):
    """Optimizer that applies Adafactor's steps to `groups`."""

    def __init__(
        self,
        groups: list[ParameterGroup],
        settings: OptimizerSettings,
        compute_step: Callable[..., tuple[Tensor, ...]],
    ) -> None:
        """Take steps by `compute_step` of `optim.Adafactor`, whose `settings` these are."""
        super().__init__(groups, {"lr": settings.lr, "weight_decay": settings.weight_decay})
        self._compute_step = compute_step

    def build_task(self, parameter: Tensor, group: ParameterGroup) -> WholeTask:
        """Return the computation of a whole step and of the new averages."""
        state = self.state[parameter]
        if not state:
            state["step"] = torch.tensor(0.0)
            state.update(_make_averages(parameter))
        state["step"] += 1
        averages = [Rows.of(state[name]) for name in AVERAGES if name in state]
        assert parameter.grad is not None
        gradient = Rows.of(parameter.grad)
        change = Rows(torch.empty_like(gradient.local), gradient.count)

        def compute(weight: Tensor, gradient: Tensor, *averages: Tensor) -> tuple[Tensor, ...]:
            step = float(state["step"])
            return self._compute_step(
                weight, gradient, averages, step, group["lr"], group["weight_decay"]
            )

        return WholeTask([Rows.of(parameter), gradient, *averages], [change, *averages], compute)

    def update(self, parameter: Tensor, outputs: Sequence[Rows], group: ParameterGroup) -> None:
        """Subtract the step."""
        to_local(parameter).sub_(outputs[0].local)


def _make_averages(parameter: Tensor) -> dict[str, Tensor]:
    """Return a parameter's initial averages, sliced along dimension 0 as the parameter is."""
    if parameter.ndim < 2:
        return {"exp_avg_sq": torch.zeros_like(parameter)}
    shapes = {
        "exp_avg_sq_row": parameter.shape[:-1],
        "exp_avg_sq_col": parameter.shape[:-2] + parameter.shape[-1:],
    }
    return {name: _make_zeros(shape, parameter) for name, shape in shapes.items()}


def _make_zeros(shape: torch.Size, like: Tensor) -> Tensor:
    if isinstance(like, DTensor):
        made: Tensor = sharded_zeros(
            shape, device_mesh=like.device_mesh, placements=like.placements
        )
        return made
    return torch.zeros(shape, device=like.device)


class MuonSteps(WholeTensorSteps):
    """Optimizer that applies Muon's steps to `groups` of matrices or stacks of them."""

    def __init__(
        self,
        groups: list[ParameterGroup],
        settings: OptimizerSettings,
        average: torch.dtype,
        compute_direction: Callable[[Tensor, Tensor], Tensor],
        orthogonalise: Callable[[Tensor], tuple[Tensor, ...]],
        step_scale: Callable[[tuple[int, ...]], float],
    ) -> None:
        """Take steps by the functions of `optim.Muon`, with averages of the dtype `average`."""
        super().__init__(groups, {"lr": settings.lr, "weight_decay": settings.weight_decay})
        self._average = average
        self._compute_direction = compute_direction
        self._orthogonalise = orthogonalise
        self._step_scale = step_scale

    def build_task(self, parameter: Tensor, group: ParameterGroup) -> WholeTask:
        """Return the orthogonalisation of the whole average, after the average is updated."""
        assert parameter.grad is not None
        state = self.state[parameter]
        if not state:
            state["momentum"] = torch.zeros_like(parameter, dtype=self._average)
        along = self._compute_direction(to_local(parameter.grad), to_local(state["momentum"]))
        rows = Rows(along, parameter.shape[0])
        return WholeTask([rows], [rows], self._orthogonalise)

    def update(self, parameter: Tensor, outputs: Sequence[Rows], group: ParameterGroup) -> None:
        """Shrink the weights, and subtract the orthogonal direction times the rate."""
        rate = group["lr"] * self._step_scale(tuple(parameter.shape))
        weight = to_local(parameter).mul_(1 - group["lr"] * group["weight_decay"])
        weight.sub_(outputs[0].local.mul_(rate))
