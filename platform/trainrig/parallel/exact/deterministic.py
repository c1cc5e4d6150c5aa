"""Gradients whose bits do not depend on how many ranks computed them.

The micro-batches of a step are the leaves of one tree (`parallel.exact.tree`), whose runs are those
of the virtual workers, whose number is a setting. A rank adds up what of its own micro-batches are
neighbours there (`tree.plan_hand_over`); what is left, whole gradients, is handed over in levels,
and the rank that receives some adds them where they belong in the tree (`parallel.exact.exchange`):

1. Each rank sends each other one of its node the slices that that one sums up: its own, and those
   of the ranks that have the same place on other nodes. Where nodes have different numbers of
   ranks, or one: each rank sends each other one its own slices, and that is all.
2. Each rank sends those what its node has come to: a node's network card carries one such sum, not
   one of each of its ranks.
3. Of copies of the model (HSDP), each rank sends the others that hold the same slice a part of it
   to add up, and then all what has come of the parts.

With as many ranks as virtual workers, or half as many, or a quarter …, each hands over one
gradient: as many bytes as a reduce-scatter sends.

What it costs beside that: a rank with k micro-batches holds several whole gradients while it adds
up the last, unit by unit (a unit: what FSDP gathers together): up to log2 of the virtual workers it
has, one more if a virtual worker has several micro-batches, and one for each micro-batch of a
virtual worker whose first ones are another rank's. With `by_micro_batch`, none: ranks take
micro-batches in turn, hand over each unit's gradient in its backward pass, and keep slices of sums.
What is sent and received is there for UNITS_UNDER_WAY units at a time (of later levels, slices of
as many more): a unit is added up while those after it are sent. One worker for four virtual ones
takes 1.07 times as long for a step as without all this, two for two no longer (10.7M parameters,
tests/benchmarks/test_data_parallel.py).
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
    leave_copies,
    list_units,
)
from trainrig.parallel.mesh import WorkerMesh
from trainrig.parallel.norm import RowPlaces, compute_exact_norm
from trainrig.parallel.phase_clock import PhaseClock
from trainrig.tokens.batches import MicroBatchSlot

# Units that are sent at a time: the oldest is added up as soon as another has begun.
UNITS_UNDER_WAY = 2


class SummedInTree:
    """See the module. For parameters that are sliced over all ranks, or whole on the only one.

    A parameter of experts that are divided is sliced over the replicas, and its gradient is that of
    the whole micro-batch: a virtual worker is one leaf of its tree. Of others, each rank of a
    replica has a part, and a virtual worker as many leaves.
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
        """`parameters`: all of `models` that are trained; one backward pass goes through all.
        `places`: of their rows, where other ranks have others.
        `mesh`: over whose `slices` they are sliced. Of ranks that share micro-batches each has a
        part of what a virtual worker adds to the sum. `clock`: times what is waited for. `alike`:
        see `compute_exact_norm`. `by_micro_batch`: each is handed over by itself."""
        self._parameters, self._backward_units = tuple(parameters), BackwardUnits(models)
        self._gather_once, self._mesh = gather_once, mesh
        self._alike, self._places = alike, places
        self._peers = count_peers(mesh, by_micro_batch)
        self._now = StepSum(1, 1, mesh)
        self._units: list[_Unit] = []
        self._clock = clock or PhaseClock(parameters[0].device)
        whole: set[int] = set()
        units = [unit for model in models for unit in list_units(model)]
        self._by_chunk = _group_by_stage(models, parameters) if units else {}
        if not units:  # one rank alone, see needs_sharding
            whole = set(map(id, parameters))
        for module in units:
            divided = mesh.experts is not None and isinstance(module, Experts)
            slices = mesh.expert_slices if divided else mesh.slices
            leave_copies(module)
            if slices.size > 1:
                self._units.append(_Unit(divided, self._clock))
                module.set_custom_reduce_scatter(self._units[-1])  # type: ignore[arg-type]
            else:  # FSDP has nothing to scatter
                assert isinstance(module, nn.Module)
                whole |= {id(each) for each in module.parameters()}
        # What a rank has whole it is not sent: each parameter's gradient is added up as soon as it
        # is there and never waits for those of the other units.
        self._whole = [each for each in parameters if id(each) in whole]
        self._alone: list[TreeSum[Tensor]] = []
        # Python's collector sees no cycle that goes through a hook of a tensor: it would keep the
        # model, and the groups that it is cut over, for as long as the process lives.
        own = weakref.WeakMethod(self._take_own)
        for number, parameter in enumerate(self._whole):
            take = functools.partial(_call_method, own, number)
            parameter.register_post_accumulate_grad_hook(take)  # type: ignore[no-untyped-call]

    def begin(self, micro_batches: int, virtual: int, measured: bool = False) -> None:
        """See parallel.fsdp.Gradients."""
        self._now = now = StepSum(micro_batches, virtual, self._mesh, self._peers, measured)
        self._alone = [now.of_experts.make_tree() for _ in self._whole]  # no part of a micro-batch
        for unit in self._units:
            unit.begin(now)

    def backward(self, loss: Tensor, slot: MicroBatchSlot, last: bool, chunk: int = 0) -> None:
        """See parallel.fsdp.Gradients."""
        self._now.slot, self._now.last = slot, last
        self._backward_units.prepare(chunk, slot.closes or last, last, self._gather_once)
        torch.autograd.backward(loss)
        self._backward_units.finish_pass(last)
        if slot.closes or last:  # of what this micro-batch did not use, if those before it did
            for number, parameter in enumerate(self._whole):
                if parameter.grad is not None:
                    self._take_own(number, parameter)
        if self._units and slot.closes and not last:
            for parameter in self._by_chunk[chunk]:  # the units have what they need of it
                parameter.grad = None

    def finish(self) -> None:
        """See parallel.fsdp.Gradients."""
        assert self._now.sent or not self._units, "torch asks for no reduce-scatter any more"
        while self._now.under_way:
            self._now.advance(0, self._clock)
        alone, self._alone = self._alone[::-1], []
        for parameter in self._whole:  # each tree is let go before the next is added up
            parameter.grad = lay_out_like(self._sum_whole(alone.pop(), parameter), parameter)

    def _sum_whole(self, tree: TreeSum[Tensor], parameter: nn.Parameter) -> Tensor:
        """What `tree`, of this rank, and those of the other copies come to."""
        if self._mesh.copies.size == 1:
            return tree.whole()
        assert isinstance(parameter, DTensor)
        found = torch.empty_like(parameter.to_local())
        exchange = UnitReduction(self._now.summation.fill(found, tree))
        while not exchange.over:
            exchange.advance(self._clock)
        return found

    def compute_norm(self, parameters: Sequence[nn.Parameter]) -> Tensor:
        """See parallel.fsdp.Gradients."""
        return compute_exact_norm(parameters, self._mesh, self._alike, self._places)

    def compute_part_squared(self) -> Tensor | None:
        """See parallel.fsdp.Gradients."""
        if not self._now.measured:
            return None
        device = self._parameters[0].device
        total = torch.zeros((), dtype=torch.float64, device=device)
        if norms := [norm for _, norm in sorted(self._now.norms.items())]:
            total += torch.stack(norms).square().sum()
        if self._units or self._mesh.copies.size > 1:
            dist.all_reduce(total)
        return total / self._now.virtual

    def _take_own(self, number: int, parameter: Tensor) -> None:
        """Move the gradient of `parameter`, of this `number`, into its tree, once it is that of a
        virtual worker: without FSDP autograd has those of its micro-batches until then."""
        slot = self._now.slot
        if not slot.closes and not self._now.last:
            return  # the next is added to it
        assert parameter.grad is not None
        gradient = find_local_slice(parameter.grad)[0]
        parameter.grad = None
        if slot.real:
            self._now.measure_own(gradient, (slot.first, number))
            self._alone[number].add((slot.first, slot.index + 1), gradient)


def _call_method(method: weakref.WeakMethod[Callable[..., None]], *arguments: Any) -> None:
    """Call `method` if that whose method it is is still there."""
    alive = method()
    if alive is not None:
        alive(*arguments)


def count_peers(mesh: WorkerMesh, by_micro_batch: bool) -> int:
    """How many neighbouring ranks add up each round of micro-batches together, where each is handed
    over by itself; see tokens.batches.assign_micro_batches."""
    return mesh.slices.size if by_micro_batch else 1


def _group_by_stage(
    models: Sequence[nn.Module], parameters: Sequence[nn.Parameter]
) -> dict[int, list[nn.Parameter]]:
    """Those of `parameters` that each of this rank's stages has."""
    stages: dict[int, int] = {}
    for model in models:
        for unit in list_units(model):  # the whole model first, then layers of it
            assert isinstance(unit, nn.Module)
            stages |= dict.fromkeys(map(id, unit.parameters()), find_stage(model, unit))
    found: dict[int, list[nn.Parameter]] = defaultdict(list)
    for each in parameters:
        found[stages[id(each)]].append(each)
    return found


class _Unit:
    """Stands where FSDP wants a reduce-scatter for one group of parameters.

    It is called in the backward pass of each micro-batch with which something is handed over, with
    the gradients of the whole group, laid out as [world, slice].
    """

    def __init__(self, experts: bool, clock: PhaseClock) -> None:
        self._experts, self._clock = experts, clock  # whether they are experts that are divided
        self._step: StepSum | None = None
        self._turn = 0  # how often it has handed over in this step

    def begin(self, step: StepSum) -> None:
        """A step begins."""
        self._step, self._turn = step, 0
        self._summation: Summation = step.of_experts if self._experts else step.summation
        self._mine = self._summation.make_tree()
        self._kept = self._summation.make_tree_of_received()  # slices

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
        """Keep `input_tensor` [world x slice]; when the time has come begin to send what was kept.

        `output_tensor` [slice] is filled later on. FSDP makes the gradients views of it.
        """
        step = self._step
        assert step is not None
        if input_tensor.is_cuda:  # used on FSDP's stream for longer than FSDP knows of
            input_tensor.record_stream(torch.cuda.current_stream())
        if step.slot.real:
            step.measure_own(input_tensor)
            self._mine.add(self._summation.find_span(step.slot), input_tensor)
        # Whoever takes it before it is filled shall see.
        output_tensor.fill_(torch.nan)
        if step.last or step.peers > 1:
            step.under_way.append(UnitReduction(self._hand_over(output_tensor, step.last)))
            step.sent += 1
            step.advance(UNITS_UNDER_WAY, self._clock)

    def _hand_over(self, output: Tensor, last: bool) -> Waits:
        """Hand over what was kept; the last time in a step, fill `output`."""
        own, kept, turn = self._mine.parts(), self._kept, self._turn
        self._mine = self._summation.make_tree()  # what is sent is all that is left of it
        self._turn += 1
        yield from self._summation.add_up(own, kept, output, turn, last)
        if last:
            self._kept = self._summation.make_tree_of_received()
            yield from self._summation.fill(output, kept)
