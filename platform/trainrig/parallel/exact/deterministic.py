"""Gradients whose bits do not depend on the number of ranks.

The micro-batches of a step are the leaves of one summation tree (`parallel.exact.tree`). Its runs
of leaves belong to the virtual workers, whose number is a setting. A rank adds up those of its own
micro-batches that are neighbours in the tree (`tree.plan_hand_over`). The remaining sums, whole
gradients, are handed over in levels, and the rank that receives some adds them at their place in
the tree (`parallel.exact.exchange`):

1. Each rank sends every other rank of its node the slices that the receiver sums: the receiver's
own, and those of the ranks with the receiver's position on other nodes. If nodes have different
numbers of ranks, or one rank each, every rank sends every other its own slices, and the levels
below are skipped. 2. Each rank sends its node's sums to the ranks with its position on other nodes.
A node's network card then carries one sum for the node instead of one for each rank. 3. With copies
of the model (HSDP), each rank sends the other ranks with the same slice a part of it to add up, and
then all of them the result of its part.

If the number of ranks is that of the virtual workers, or a half, a quarter and so on of it, each
rank hands over one gradient: as many bytes as a reduce-scatter.

The cost beyond that is memory. A rank with k micro-batches holds several whole gradients, unit by
unit (a unit is what FSDP gathers together), while it adds up the last: up to log2 of its number of
virtual workers, one more if a virtual worker has several micro-batches, and one for each
micro-batch of a virtual worker whose first ones are on another rank. With `by_micro_batch` it holds
none: ranks take micro-batches in turn, hand over each unit's gradient in its backward pass, and
keep slices of sums. Send and receive buffers exist for UNITS_UNDER_WAY units at a time (for later
levels, slices of as many more): a unit is added up while those after it are sent. One worker for
four virtual ones takes 1.07 times as long for a step as without exact sums; two workers for two
take no longer (10.7M parameters, tests/benchmarks/test_data_parallel.py).
"""

import functools
import weakref
from collections import defaultdict
from collections.abc import Callable, Sequence, Set
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from trainrig.models.moe import Experts
from trainrig.optim.elementwise import lay_out_like
from trainrig.parallel.exact.exchange import StepSum, Summation, UnitReduction, Waits
from trainrig.parallel.exact.tree import TreeSum
from trainrig.parallel.fsdp import (
    BackwardUnits,
    find_local_slice,
    find_stage,
    list_units,
    reduce_within_copy,
)
from trainrig.parallel.mesh import WorkerMesh
from trainrig.parallel.norm import RowPlaces, compute_exact_norm
from trainrig.parallel.phase_clock import PhaseClock
from trainrig.tokens.batches import MicroBatchSlot

# Number of units whose transfer may be in progress: the oldest is added up once another has begun.
UNITS_UNDER_WAY = 2


class SummedInTree:
    """Gradients summed in the fixed order of a tree, with bits independent of the number of ranks.

    It handles parameters that are sliced over all ranks, or whole on a single rank. A parameter of
    divided experts is sliced over the replicas, and its gradient is that of the whole micro-batch,
    so a virtual worker is one leaf of its tree. Of other parameters each rank of a replica has a
    part, and a virtual worker is as many leaves.
    """

    def __init__(
        self,
        models: Sequence[nn.Module],
        parameters: Sequence[nn.Parameter],
        gather_once: bool,
        mesh: WorkerMesh,
        clock: PhaseClock | None = None,
        alike: Set[int] = frozenset(),
        places: RowPlaces | None = None,
        by_micro_batch: bool = False,
    ) -> None:
        """Replace FSDP's reduce-scatters in `models`.

        Args:
            models: This rank's models; one backward pass goes through all of them.
            parameters: All trained parameters of `models`.
            gather_once: The value given to `shard`.
            mesh: The mesh over whose `slices` parameters are sliced. Each of the ranks that share
                micro-batches has a part of a virtual worker's gradient.
            clock: Times the waiting for transfers.
            alike: See `compute_exact_norm`.
            places: Positions of the parameters' rows, if other ranks have other layers.
            by_micro_batch: Whether each micro-batch's gradient is handed over separately.
        """
        self._parameters = tuple(parameters)
        self._backward_units = BackwardUnits(models)
        self._gather_once = gather_once
        self._mesh = mesh
        self._alike = alike
        self._places = places
        self._peers = count_peers(mesh, by_micro_batch)
        self._now = StepSum(1, 1, mesh)
        self._units: list[_Unit] = []
        self._clock = clock or PhaseClock(parameters[0].device)
        whole: set[int] = set()
        units = [unit for model in models for unit in list_units(model)]
        self._by_chunk = _group_by_stage(models, parameters) if units else {}
        if not units:  # a single rank without FSDP, see needs_sharding
            whole = set(map(id, parameters))
        for module in units:
            divided = mesh.experts is not None and isinstance(module, Experts)
            slices = mesh.expert_slices if divided else mesh.slices
            reduce_within_copy(module)
            if slices.size > 1:
                self._units.append(_Unit(divided, self._clock))
                module.set_custom_reduce_scatter(self._units[-1])  # type: ignore[arg-type]
            else:  # a single slice: FSDP has nothing to scatter
                assert isinstance(module, nn.Module)
                whole |= {id(parameter) for parameter in module.parameters()}
        # Parameters that are whole on this rank need no transfer: each complete gradient is added
        # up without waiting for other units.
        self._whole = [parameter for parameter in parameters if id(parameter) in whole]
        self._alone: list[TreeSum[Tensor]] = []
        # A weak reference, because Python's garbage collector does not see cycles through tensor
        # hooks: the model and its process groups would live as long as the process.
        own = weakref.WeakMethod(self._collect_gradient)
        for number, parameter in enumerate(self._whole):
            take = functools.partial(_call_method, own, number)
            parameter.register_post_accumulate_grad_hook(take)  # type: ignore[no-untyped-call]

    def begin(self, micro_batches: int, virtual: int, measured: bool = False) -> None:
        """Reset the trees for a step. See `Gradients.begin`."""
        self._now = now = StepSum(micro_batches, virtual, self._mesh, self._peers, measured)
        # one leaf per virtual worker
        self._alone = [now.of_experts.make_tree() for _ in self._whole]
        for unit in self._units:
            unit.begin(now)

    def backward(self, loss: Tensor, slot: MicroBatchSlot, last: bool, chunk: int = 0) -> None:
        """Run a backward pass and hand over complete sums. See `Gradients.backward`."""
        self._now.slot = slot
        self._now.last = last
        self._backward_units.prepare(chunk, slot.closes or last, last, self._gather_once)
        torch.autograd.backward(loss)
        self._backward_units.finish_pass(last)
        if slot.closes or last:  # parameters that only earlier micro-batches used
            for number, parameter in enumerate(self._whole):
                if parameter.grad is not None:
                    self._collect_gradient(number, parameter)
        if self._units and slot.closes and not last:
            for parameter in self._by_chunk[chunk]:  # the units keep what they need of the gradient
                parameter.grad = None

    def finish(self) -> None:
        """Complete all transfers, and leave the sums in `grad`. See `Gradients.finish`."""
        assert self._now.sent or not self._units, "torch asks for no reduce-scatter any more"
        while self._now.under_way:
            self._now.advance(0, self._clock)
        alone = self._alone[::-1]
        self._alone = []
        for parameter in self._whole:  # each tree is freed before the next is added up
            parameter.grad = lay_out_like(self._sum_whole(alone.pop(), parameter), parameter)

    def _sum_whole(self, tree: TreeSum[Tensor], parameter: nn.Parameter) -> Tensor:
        """Return the sum of `tree` on this rank and on all other copies of the model."""
        if self._mesh.copies.size == 1:
            return tree.whole()
        assert isinstance(parameter, DTensor)
        found = torch.empty_like(parameter.to_local())
        exchange = UnitReduction(self._now.summation.fill(found, tree))
        while not exchange.over:
            exchange.advance(self._clock)
        return found

    def compute_norm(self, parameters: Sequence[nn.Parameter]) -> Tensor:
        """Return the norm, with bits independent of the layout. See `Gradients.compute_norm`."""
        return compute_exact_norm(parameters, self._mesh, self._alike, self._places)

    def compute_part_squared(self) -> Tensor | None:
        """Return the mean squared norm of the virtual workers' gradients. See `Gradients`."""
        if not self._now.measured:
            return None
        device = self._parameters[0].device
        total = torch.zeros((), dtype=torch.float64, device=device)
        if norms := [norm for _, norm in sorted(self._now.norms.items())]:
            total += torch.stack(norms).square().sum()
        if self._units or self._mesh.copies.size > 1:
            dist.all_reduce(total)
        return total / self._now.virtual

    def _collect_gradient(self, number: int, parameter: Tensor) -> None:
        """Move the gradient of parameter number `number` into its tree once it is complete.

        It is complete at the end of a virtual worker's micro-batches: without FSDP, autograd
        accumulates their gradients until then.
        """
        slot = self._now.slot
        if not slot.closes and not self._now.last:
            return  # autograd adds the next micro-batch to it
        assert parameter.grad is not None
        gradient = find_local_slice(parameter.grad)[0]
        parameter.grad = None
        if slot.real:
            self._now.measure_own(gradient, (slot.first, number))
            self._alone[number].add((slot.first, slot.index + 1), gradient)


def _call_method(method: weakref.WeakMethod[Callable[..., None]], *arguments: Any) -> None:
    """Call `method` if its object still exists."""
    alive = method()
    if alive is not None:
        alive(*arguments)


def count_peers(mesh: WorkerMesh, by_micro_batch: bool) -> int:
    """Return how many neighbouring ranks add up each round of micro-batches together.

    It is 1 unless micro-batches are handed over separately; see
    tokens.batches.assign_micro_batches.
    """
    return mesh.slices.size if by_micro_batch else 1


def _group_by_stage(
    models: Sequence[nn.Module], parameters: Sequence[nn.Parameter]
) -> dict[int, list[nn.Parameter]]:
    """Return the parameters of each of this rank's pipeline stages."""
    stages: dict[int, int] = {}
    for model in models:
        for unit in list_units(model):  # the whole model comes first, then its layers override it
            assert isinstance(unit, nn.Module)
            stages |= dict.fromkeys(map(id, unit.parameters()), find_stage(model, unit))
    found: dict[int, list[nn.Parameter]] = defaultdict(list)
    for parameter in parameters:
        found[stages[id(parameter)]].append(parameter)
    return found


class _Unit:
    """Replacement for FSDP's reduce-scatter of one group of parameters.

    FSDP calls it in the backward pass of each micro-batch after which sums are handed over, with
    the gradients of the whole group laid out as [world, slice].
    """

    def __init__(self, experts: bool, clock: PhaseClock) -> None:
        # `experts`: whether the parameters are divided experts
        self._experts = experts
        self._clock = clock
        self._step: StepSum | None = None
        self._turn = 0  # number of times this unit handed over sums in this step

    def begin(self, step: StepSum) -> None:
        """Reset the trees for a step."""
        self._step = step
        self._turn = 0
        self._summation: Summation = step.of_experts if self._experts else step.summation
        self._mine = self._summation.make_tree()
        self._kept = self._summation.make_tree_of_received()  # sums of this rank's slice

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Allocate a buffer that FSDP fills or reads."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> None:
        """Add `input_tensor` [world x slice] to the kept sums, and send them when complete.

        `output_tensor` [slice], of which FSDP makes the gradients views, is filled later.
        """
        step = self._step
        assert step is not None
        if input_tensor.is_cuda:  # The stream uses the tensor for longer than FSDP knows.
            input_tensor.record_stream(torch.cuda.current_stream())
        if step.slot.real:
            step.measure_own(input_tensor)
            self._mine.add(self._summation.find_span(step.slot), input_tensor)
        # NaN shows up in any result that reads the output too early.
        output_tensor.fill_(torch.nan)
        if step.last or step.peers > 1:
            step.under_way.append(UnitReduction(self._hand_over(output_tensor, step.last)))
            step.sent += 1
            step.advance(UNITS_UNDER_WAY, self._clock)

    def _hand_over(self, output: Tensor, last: bool) -> Waits:
        """Hand over the kept sums; the last time in a step, fill `output` with the result."""
        own = self._mine.parts()
        kept = self._kept
        turn = self._turn
        self._mine = self._summation.make_tree()  # frees the old tree once its sums are sent
        self._turn += 1
        yield from self._summation.add_up(own, kept, output, turn, last)
        if last:
            self._kept = self._summation.make_tree_of_received()
            yield from self._summation.fill(output, kept)
