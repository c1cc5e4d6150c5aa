"""Gradients whose bits do not depend on how many ranks computed them.

The micro-batches of a step belong to virtual workers, whose number is a setting
(`tokens.batches.assign_micro_batches`). A rank adds up those of one virtual worker one after
another, and the virtual workers in one fixed tree (`parallel.tree`): its own ones by itself, before
anything is sent. Then each rank sends each other the slice that that one keeps, one piece for every
largest subtree that it owns; the receiver adds them where they belong in the tree. With as many
ranks as virtual workers, or half as many, or a quarter …, that is one piece: as many bytes as a
reduce-scatter sends.

What it costs beside that: a rank with k virtual workers holds up to log2(k) whole gradients while
it adds up the last, unit by unit (a unit: what FSDP gathers together), and one more if a virtual
worker has several micro-batches. What is sent and received is there for UNITS_UNDER_WAY units at a
time: a unit is added up while those after it are sent. One worker for four virtual ones takes 1.07
times as long for a step as without all this, two for two no longer (10.7M parameters,
tests/benchmarks/test_data_parallel.py).
"""

import functools
from collections import deque
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from trainrig.models.moe import Experts
from trainrig.parallel.fsdp import units
from trainrig.parallel.mesh import Axis, WorkerMesh
from trainrig.parallel.norm import RowPlaces, exact_norm
from trainrig.parallel.phase_clock import PhaseClock
from trainrig.parallel.tree import Span, TreeSum, largest_subtrees
from trainrig.tokens.batches import MicroBatchSlot, virtual_workers

# Units that are sent at a time: the older is added up as soon as another has begun.
UNITS_UNDER_WAY = 2


class SummedInTree:
    """See the module. For parameters that are sliced over all ranks.

    A parameter of experts that are divided is sliced over the replicas, and its gradient is that of
    the whole micro-batch: a virtual worker is one leaf of its tree. Of others, each rank of a
    replica has a part, and a virtual worker as many leaves.
    """

    def __init__(
        self,
        models: Sequence[FSDPModule],
        parameters: Sequence[nn.Parameter],
        gather_once: bool,
        mesh: WorkerMesh,
        clock: PhaseClock | None = None,
        alike: Set[int] = frozenset(),
        places: RowPlaces | None = None,
    ) -> None:
        """`parameters`: all of `models` that are trained; one backward pass goes through all.
        `places`: of their rows, where other ranks have others.
        `mesh`: over whose `slices` they are sliced. Of ranks that share micro-batches each has a
        part of what a virtual worker adds to the sum. `clock`: times what is waited for. `alike`:
        see `exact_norm`."""
        self._models, self._parameters = tuple(models), tuple(parameters)
        self._gather_once, self._mesh = gather_once, mesh
        self._alike, self._places = alike, places
        self._now = _Now(1, mesh)
        self._units: list[_Unit] = []
        clock = clock or PhaseClock(parameters[0].device)
        whole: set[int] = set()
        for module in (unit for model in self._models for unit in units(model)):
            divided = mesh.experts is not None and isinstance(module, Experts)
            slices = mesh.expert_slices if divided else mesh.slices
            if slices.size > 1:
                self._units.append(_Unit(divided, clock))
                module.set_custom_reduce_scatter(self._units[-1])  # type: ignore[arg-type]
            else:  # FSDP has nothing to scatter
                assert isinstance(module, nn.Module)
                whole |= {id(each) for each in module.parameters()}
        # What a rank has whole it is not sent: each parameter's gradient is added up as soon as it
        # is there and never waits for those of the other units.
        self._whole = [each for each in parameters if id(each) in whole]
        self._alone: list[TreeSum[Tensor]] = []
        for number, parameter in enumerate(self._whole):
            take = functools.partial(self._take_own, number)
            parameter.register_post_accumulate_grad_hook(take)  # type: ignore[no-untyped-call]

    def begin(self, virtual: int, measured: bool = False) -> None:
        """See parallel.fsdp.Gradients."""
        self._now = _Now(virtual, self._mesh, measured)
        self._alone = [TreeSum(virtual) for _ in self._whole]
        for unit in self._units:
            unit.begin(self._now)

    def backward(self, loss: Tensor, slot: MicroBatchSlot, last: bool) -> None:
        """See parallel.fsdp.Gradients."""
        self._now.slot, self._now.last = slot, last
        for model in self._models:
            model.set_requires_gradient_sync(slot.closes or last)
            model.set_reshard_after_backward(last or not self._gather_once)
        torch.autograd.backward(loss)
        if self._units and slot.closes and not last:
            for parameter in self._parameters:  # the units have what they need of it
                parameter.grad = None

    def finish(self) -> None:
        """See parallel.fsdp.Gradients."""
        assert self._now.sent or not self._units, "torch asks for no reduce-scatter any more"
        while self._now.under_way:
            self._now.under_way.popleft().finish()
        for parameter, tree in zip(self._whole, self._alone, strict=True):
            parameter.grad = _like(parameter, tree.whole())
        self._alone = []

    def norm(self, parameters: Sequence[nn.Parameter]) -> float:
        """See parallel.fsdp.Gradients."""
        return exact_norm(parameters, self._mesh, self._alike, self._places)

    def part_squared(self) -> float | None:
        """See parallel.fsdp.Gradients."""
        if not self._now.measured:
            return None
        device = self._parameters[0].device
        total = torch.zeros((), dtype=torch.float64, device=device)
        for _, square in sorted(self._now.squares.items()):
            total += square
        if self._units:
            dist.all_reduce(total)
        return float(total) / self._now.virtual

    def _take_own(self, number: int, parameter: Tensor) -> None:
        """FSDP has left the gradient of a virtual worker with `parameter`, of this `number`."""
        assert isinstance(parameter.grad, DTensor)
        gradient, slot = parameter.grad.to_local(), self._now.slot
        parameter.grad = None
        self._now.measure(gradient, (slot.virtual, number))
        self._alone[number].add((slot.virtual, slot.virtual + 1), gradient)


def _like(parameter: nn.Parameter, local: Tensor) -> DTensor:
    assert isinstance(parameter, DTensor)
    return DTensor.from_local(
        local,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )


class _Leaves:
    """What is added up in one tree over `slices`, where each of `parts` has a part of what a
    virtual worker adds."""

    def __init__(self, virtual: int, slices: Axis, parts: Axis) -> None:
        # First come the leaves of the first of the parts, then those of the second, so that what a
        # rank adds up itself are neighbours.
        self.count, self._virtual, self._part = virtual * parts.size, virtual, parts.rank
        self.spans: list[list[Span]] = []  # of each rank of `slices`
        for rank in range(slices.size):
            replica, part = divmod(rank, parts.size)
            own = virtual_workers(virtual, replica, slices.size // parts.size)
            first = part * virtual
            self.spans.append(largest_subtrees(first + own[0], first + own[1], self.count))

    def of(self, virtual: int) -> Span:
        """That of this rank's part of virtual worker `virtual`."""
        first = self._part * self._virtual + virtual
        return first, first + 1


class _Now:
    """Where a step has got to; all units look at the same."""

    def __init__(self, virtual: int, mesh: WorkerMesh, measured: bool = False) -> None:
        # Parts of virtual workers are not whole gradients, so their norms say nothing.
        parts = mesh.parts.size * mesh.tensor.size * mesh.pipeline.size
        self.virtual, self.measured = virtual, measured and parts == 1
        self.leaves = _Leaves(virtual, mesh.slices, mesh.parts)
        self.of_experts = _Leaves(virtual, mesh.expert_slices, Axis())
        # Of the norms of what was added up; added themselves in the order of their keys.
        self.squares: dict[tuple[int, int], Tensor] = {}
        self.under_way: deque[_Unit] = deque()  # units that were not added up yet, oldest first
        self.sent = 0  # units
        self.slot = MicroBatchSlot(0, False, 0, closes=False)
        self.last = False

    def measure(self, gradient: Tensor, key: tuple[int, int] | None = None) -> None:
        """`gradient` is part of what a virtual worker adds to the sum."""
        if self.measured:
            norm = torch.linalg.vector_norm(gradient, dtype=torch.float64)
            self.squares[key or (0, len(self.squares))] = norm.square()


class _Unit:
    """Stands where FSDP wants a reduce-scatter for one group of parameters.

    It is called in the backward pass of the last micro-batch of each virtual worker, with the
    gradients of the whole group, laid out as [world, slice].
    """

    def __init__(self, experts: bool, clock: PhaseClock) -> None:
        self._experts, self._clock = experts, clock  # whether they are experts that are divided
        self._mine: TreeSum[Tensor] = TreeSum(1)
        self._leaves = _Leaves(1, Axis(), Axis())
        self._pending: _Pending | None = None
        self._now: _Now | None = None

    def begin(self, now: _Now) -> None:
        """A step begins."""
        self._leaves = now.of_experts if self._experts else now.leaves
        self._now, self._mine, self._pending = now, TreeSum(self._leaves.count), None

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Memory for what FSDP hands over and takes back."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> None:
        """Keep `input_tensor` [world x slice]; at the last micro-batch begin to send what was kept.

        `output_tensor` [slice] is filled by `finish`. FSDP makes the gradients views of it.
        """
        assert self._now is not None
        if input_tensor.is_cuda:  # used on FSDP's stream for longer than FSDP knows of
            input_tensor.record_stream(torch.cuda.current_stream())
        if self._now.slot.real:
            self._now.measure(input_tensor)
            self._mine.add(self._leaves.of(self._now.slot.virtual), input_tensor)
        # Whoever takes it before `finish` has filled it shall see.
        output_tensor.fill_(torch.nan)
        if self._now.last:
            self._pending = self._send(output_tensor, input_tensor, group)
            self._mine = TreeSum(1)  # what is sent is all that is left of it
            self._now.sent += 1
            self._now.under_way.append(self)
            while len(self._now.under_way) > UNITS_UNDER_WAY:
                self._now.under_way.popleft().finish()

    def _send(self, output: Tensor, like: Tensor, group: dist.ProcessGroup) -> "_Pending":
        world, slice_ = group.size(), output.numel()
        pieces = [value.view(world, slice_) for _, value in self._mine.parts()]
        # [world, pieces, slice]: what each rank is sent lies together.
        outgoing = pieces[0] if len(pieces) == 1 else like.new_empty(world, len(pieces), slice_)
        for number, piece in enumerate(pieces if len(pieces) > 1 else ()):
            outgoing[:, number] = piece
        counts = [len(spans) for spans in self._leaves.spans]
        incoming = like.new_empty(sum(counts), slice_)
        work = dist.all_to_all_single(
            incoming.view(-1),
            outgoing.reshape(-1),
            [count * slice_ for count in counts],
            [len(pieces) * slice_] * world,
            group=group,
            async_op=True,
        )
        return _Pending(work, outgoing, incoming, output)

    def finish(self) -> None:
        """Add up what came, into what FSDP was given."""
        assert self._pending is not None
        with self._clock.waiting():
            self._pending.work.wait()
        tree: TreeSum[Tensor] = TreeSum(self._leaves.count)
        spans = [span for each in self._leaves.spans for span in each]
        for span, piece in zip(spans, self._pending.incoming, strict=True):
            tree.add(span, piece)
        self._pending.output.copy_(tree.whole())
        self._pending = None


@dataclass
class _Pending:
    """What is on its way."""

    work: Any
    outgoing: Tensor  # kept until it is sent
    incoming: Tensor  # [pieces of all ranks, slice]
    output: Tensor  # [slice]
