"""Gradients whose bits do not depend on the number of ranks.

The micro-batches of a step are the leaves of one summation tree (`parallel.sharding.sum_tree`).
They are cut into runs of consecutive leaves, one for each *virtual worker*; the number of virtual
workers is a setting, so the tree does not depend on the number of ranks. A rank adds up those of
its own micro-batches that are neighbours in the tree (`sum_tree.plan_hand_over`). The sums that
remain have the size of a whole gradient. The rank hands them over in levels, and each receiver adds
them at their place in the tree (`parallel.sharding.sum_exchange`):

1. Within a node, each rank sends every other rank the slices that the receiver sums: the receiver's
   own, and those of the ranks with the receiver's position on other nodes.
2. Each rank sends its node's sums to the ranks with its position on other nodes. A node's network
   card then carries one sum for the node instead of one for each rank.
3. With copies of the model (HSDP), each rank sends the other ranks with the same slice a part of it
   to add up, and then all of them the result of its part.

Levels 1 and 2 need several nodes with equally many ranks, at least two each, and no axis of the
mesh but slices. Otherwise one level replaces them: every rank sends every other its own slices.

If the number of ranks is that of the virtual workers, or a half, a quarter and so on of it, each
rank hands over one gradient: as many bytes as a reduce-scatter.

The cost beyond that is memory. For each unit (what FSDP gathers together), a rank holds several
whole gradients at the end of its micro-batches: up to log2 of its number of virtual workers, one
more if a virtual worker has several micro-batches, and one for each micro-batch of a virtual worker
that begins on another rank. With `by_micro_batch` it holds none: it hands over each unit's gradient
in the backward pass of every micro-batch, and keeps slices of sums.

Send and receive buffers exist for UNITS_UNDER_WAY units at a time (for later levels, slices of as
many more): a unit is added up while those after it are sent. With one rank for four virtual workers
a step takes 1.07 times as long as without exact sums; with two ranks for two virtual workers it
takes no longer (10.7M parameters, tests/benchmarks/test_data_parallel.py).
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
from trainrig.parallel.mesh import WorkerMesh
from trainrig.parallel.phase_clock import PhaseClock
from trainrig.parallel.sharding import fsdp
from trainrig.parallel.sharding.gradient_norm import RowPlaces, compute_exact_norm
from trainrig.parallel.sharding.sum_exchange import StepSum, Summation, UnitReduction, Waits
from trainrig.parallel.sharding.sum_tree import TreeSum
from trainrig.tokens.batches import MicroBatchSlot

# Number of units whose transfers may be in progress; when one more begins, the oldest is added up.
UNITS_UNDER_WAY = 2


class SummedInTree:
    """Gradients summed in the fixed order of a tree, with bits independent of the number of ranks.

    It handles parameters that are sliced over all ranks, or whole on a single rank. If several
    ranks share each micro-batch (`mesh.parts`), each of them has a part of its gradient, and each
    part is a leaf of the tree. Parameters of divided experts are the exception: they are sliced
    over the replicas, a rank has their gradient of the whole micro-batch, and that is one leaf.
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
            gather_once: The value given to `fsdp.shard`.
            mesh: The mesh over whose `slices` parameters are sliced.
            clock: Times the waiting for transfers.
            alike: The `id` of each parameter that is the same on all ranks that share layers.
            places: Positions of the parameters' rows, if other ranks have other layers.
            by_micro_batch: Whether each micro-batch's gradient is handed over separately.
        """
        self._parameters = tuple(parameters)
        self._backward_units = fsdp.BackwardUnits(models)
        self._gather_once = gather_once
        self._mesh = mesh
        self._alike = alike
        self._places = places
        self._peers = count_peers(mesh, by_micro_batch)
        self._step_sum = StepSum(1, 1, mesh)
        self._units: list[_Unit] = []
        self._clock = clock or PhaseClock(parameters[0].device)
        whole: set[int] = set()
        units = [unit for model in models for unit in fsdp.list_units(model)]
        self._by_stage = _group_by_stage(models, parameters) if units else {}
        if not units:  # a single rank without FSDP, see needs_sharding
            whole = set(map(id, parameters))
        for module in units:
            divided = mesh.experts is not None and isinstance(module, Experts)
            slices = mesh.expert_slices if divided else mesh.slices
            fsdp.reduce_within_copy(module)
            if slices.size > 1:
                self._units.append(_Unit(divided, self._clock))
                module.set_custom_reduce_scatter(self._units[-1])  # type: ignore[arg-type]
            else:  # a single slice: FSDP has nothing to scatter
                assert isinstance(module, nn.Module)
                whole |= {id(parameter) for parameter in module.parameters()}
        # Parameters that are whole on this rank need no transfer: each complete gradient is added
        # up without waiting for other units.
        self._whole = [parameter for parameter in parameters if id(parameter) in whole]
        self._whole_trees: list[TreeSum[Tensor]] = []
        # A weak reference, because Python's garbage collector does not see cycles through tensor
        # hooks: the model and its process groups would live as long as the process.
        collect = weakref.WeakMethod(self._collect_gradient)
        for number, parameter in enumerate(self._whole):
            take = functools.partial(_call_method, collect, number)
            parameter.register_post_accumulate_grad_hook(take)  # type: ignore[no-untyped-call]

    def begin(self, micro_batches: int, virtual: int, measured: bool = False) -> None:
        """Reset the trees for a step with `virtual` virtual workers. See `Gradients.begin`.

        `measured`: whether to measure the norms that `compute_part_squared` needs.
        """
        self._step_sum = step_sum = StepSum(
            micro_batches, virtual, self._mesh, self._peers, measured
        )
        # Whole parameters have gradients of whole micro-batches, as divided experts do.
        self._whole_trees = [step_sum.of_experts.make_tree() for _ in self._whole]
        for unit in self._units:
            unit.begin(step_sum)

    def backward(self, loss: Tensor, slot: MicroBatchSlot, last: bool, chunk: int = 0) -> None:
        """Run the backward pass of a micro-batch and hand over complete sums.

        Sums are complete where `slot.closes`, at the end of a virtual worker on this rank, and at
        the `last` micro-batch of the step. See `Gradients.backward`.
        """
        self._step_sum.slot = slot
        self._step_sum.last = last
        self._backward_units.prepare(chunk, slot.closes or last, last, self._gather_once)
        torch.autograd.backward(loss)
        self._backward_units.finish_pass(last)
        if slot.closes or last:  # parameters that only earlier micro-batches used
            for number, parameter in enumerate(self._whole):
                if parameter.grad is not None:
                    self._collect_gradient(number, parameter)
        if self._units and slot.closes and not last:
            for parameter in self._by_stage[chunk]:  # the units' trees hold these gradients now
                parameter.grad = None

    def finish(self) -> None:
        """Complete all transfers, and leave the sums in `grad`. See `Gradients.finish`."""
        assert self._step_sum.sent or not self._units, (
            "torch no longer calls the custom reduce-scatter"
        )
        while self._step_sum.under_way:
            self._step_sum.advance(0, self._clock)
        trees = self._whole_trees[::-1]
        self._whole_trees = []
        for parameter in self._whole:  # each tree is freed before the next is added up
            parameter.grad = lay_out_like(self._sum_whole(trees.pop(), parameter), parameter)

    def _sum_whole(self, tree: TreeSum[Tensor], parameter: nn.Parameter) -> Tensor:
        """Return the sum of `tree` on this rank and on all other copies of the model."""
        if self._mesh.copies.size == 1:
            return tree.whole()
        assert isinstance(parameter, DTensor)
        found = torch.empty_like(parameter.to_local())
        exchange = UnitReduction(self._step_sum.summation.fill(found, tree))
        while not exchange.over:
            exchange.advance(self._clock)
        return found

    def compute_norm(self, parameters: Sequence[nn.Parameter]) -> Tensor:
        """Return the norm, with bits independent of the layout. See `Gradients.compute_norm`."""
        return compute_exact_norm(parameters, self._mesh, self._alike, self._places)

    def compute_part_squared(self) -> Tensor | None:
        """Return the mean squared norm of the virtual workers' gradients, or None if not measured.

        The gradient noise scale is estimated from it. Collective.
        """
        if not self._step_sum.measured:
            return None
        device = self._parameters[0].device
        total = torch.zeros((), dtype=torch.float64, device=device)
        if norms := [norm for _, norm in sorted(self._step_sum.norms.items())]:
            total += torch.stack(norms).square().sum()
        if self._units or self._mesh.copies.size > 1:
            dist.all_reduce(total)
        return total / self._step_sum.virtual

    def _collect_gradient(self, number: int, parameter: Tensor) -> None:
        """Move the gradient of parameter number `number` into its tree once it is complete.

        It is complete at the end of a virtual worker's micro-batches: without FSDP, autograd
        accumulates their gradients until then.
        """
        slot = self._step_sum.slot
        if not slot.closes and not self._step_sum.last:
            return  # autograd adds the next micro-batch to it
        assert parameter.grad is not None
        gradient = fsdp.find_local_slice(parameter.grad)[0]
        parameter.grad = None
        if slot.real:
            self._step_sum.measure_own(gradient, (slot.first, number))
            self._whole_trees[number].add((slot.first, slot.index + 1), gradient)


def _call_method(method: weakref.WeakMethod[Callable[..., None]], *arguments: Any) -> None:
    """Call `method` if its object still exists."""
    bound = method()
    if bound is not None:
        bound(*arguments)


def count_peers(mesh: WorkerMesh, by_micro_batch: bool) -> int:
    """Return how many neighbouring ranks take micro-batches in turn and hand each over at once.

    1 means that a rank has consecutive micro-batches, adds them up, and hands over once a step; see
    tokens.batches.assign_micro_batches.
    """
    return mesh.slices.size if by_micro_batch else 1


def _group_by_stage(
    models: Sequence[nn.Module], parameters: Sequence[nn.Parameter]
) -> dict[int, list[nn.Parameter]]:
    """Return the parameters of each of this rank's pipeline stages, by the stage's `chunk` number.

    It is 0 for a rank with one stage.
    """
    stages: dict[int, int] = {}
    for model in models:
        for unit in fsdp.list_units(
            model
        ):  # the whole model comes first, then its layers override it
            assert isinstance(unit, nn.Module)
            stages |= dict.fromkeys(map(id, unit.parameters()), fsdp.find_stage(model, unit))
    found: dict[int, list[nn.Parameter]] = defaultdict(list)
    for parameter in parameters:
        found[stages[id(parameter)]].append(parameter)
    return found


class _Unit:
    """Replacement for FSDP's reduce-scatter of one group of parameters.

    FSDP calls it in the backward pass of each micro-batch after which sums are complete, with the
    gradients of the whole group, laid out as [world, slice] and flattened.
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
        # sums of this rank's micro-batches that are not handed over yet
        self._own_tree = self._summation.make_tree()
        # sums of this rank's slice that it received
        self._slice_tree = self._summation.make_tree_of_received()

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Allocate a buffer for FSDP's gradients, as its reduce-scatter interface requires."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> None:
        """Add `input_tensor` [world * slice] to this rank's sums, and hand them over if due.

        They are due at the last micro-batch of a step, and with `by_micro_batch` at each. FSDP
        makes the gradients views of `output_tensor` [slice], which is filled when the transfers of
        the last micro-batch complete.
        """
        step = self._step
        assert step is not None
        if input_tensor.is_cuda:  # The stream uses the tensor for longer than FSDP knows.
            input_tensor.record_stream(torch.cuda.current_stream())
        if step.slot.real:
            step.measure_own(input_tensor)
            self._own_tree.add(self._summation.find_span(step.slot), input_tensor)
        # NaN shows up in any result that reads the output too early.
        output_tensor.fill_(torch.nan)
        if step.last or step.peers > 1:
            step.under_way.append(UnitReduction(self._hand_over(output_tensor, step.last)))
            step.sent += 1
            step.advance(UNITS_UNDER_WAY, self._clock)

    def _hand_over(self, output: Tensor, last: bool) -> Waits:
        """Hand over this rank's sums; if `last`, then fill `output` with the step's sum.

        Yields each transfer that must complete before it continues.
        """
        own = self._own_tree.list_sums()
        received = self._slice_tree
        turn = self._turn
        # `add_up` empties `own` once its sums are sent, so the old tree must not hold them.
        self._own_tree = self._summation.make_tree()
        self._turn += 1
        yield from self._summation.add_up(own, received, output, turn, last)
        if last:
            self._slice_tree = self._summation.make_tree_of_received()
            yield from self._summation.fill(output, received)
