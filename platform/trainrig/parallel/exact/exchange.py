"""How what ranks have added up is brought together, level by level.

What a rank hands over is a few subtrees of the step's tree (`parallel.exact.tree`), each the sum of
some micro-batches of its own. Whoever receives some adds them where they belong, and hands over
what they come to; so every level carries as few as there are.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor

from trainrig.parallel.exact.plan import SumPlan
from trainrig.parallel.exact.tree import Span, TreeSum, join_spans
from trainrig.parallel.mesh import Axis, WorkerMesh
from trainrig.parallel.phase_clock import PhaseClock
from trainrig.tokens.batches import MicroBatchSlot, find_virtual_worker

Waits = Generator["PendingTransfer", None, None]  # what to wait for, before what comes next is done
Pieces = list[tuple[Span, Tensor]]  # sums of subtrees


@dataclass(eq=False)
class PendingTransfer:
    """What is on its way."""

    work: Any
    outgoing: Tensor  # kept until it is sent
    incoming: Tensor  # [pieces of all ranks, elements]

    @classmethod
    def to_all(
        cls, pieces: Pieces, width: int, counts: Sequence[int], axis: Axis, like: Tensor
    ) -> Self:
        """Begin to send each of `pieces` [ranks x width] to all ranks of `axis`, a row to each;
        of which each sends so many as `counts` says. `like`: for those who have none."""
        world = axis.size
        rows = [piece.view(world, width) for _, piece in pieces]
        # [world, pieces, width]: what each rank is sent lies together.
        outgoing = rows[0] if len(rows) == 1 else like.new_empty(world, len(rows), width)
        for number, row in enumerate(rows if len(rows) > 1 else ()):
            outgoing[:, number] = row
        incoming = like.new_empty(sum(counts), width)
        work = dist.all_to_all_single(
            incoming.view(-1),
            outgoing.reshape(-1),
            [count * width for count in counts],
            [len(rows) * width] * world,
            group=axis.group,
            async_op=True,
        )
        return cls(work, outgoing, incoming)


class Summation:
    """The tree of one step, and who has what of it, where the gradients of units are sliced over
    `slices` and each of `parts` has a part of what a micro-batch adds."""

    def __init__(self, step: "StepSum", mesh: WorkerMesh, slices: Axis, parts: Axis) -> None:
        self._step, self._slices, self._parts = step, slices, parts
        self._copies, self._node, self._nodes = mesh.copies, mesh.node, mesh.nodes
        self._plan = SumPlan(
            step.micro_batches,
            step.virtual,
            slices.size,
            parts.size,
            mesh.copies.size,
            step.peers,
        )

    def make_tree(self) -> TreeSum[Tensor]:
        """Of all leaves."""
        return TreeSum(*self._plan.tree)

    def make_tree_of_received(self) -> TreeSum[Tensor]:
        """The same, which measures virtual workers whose sums come together there."""
        return TreeSum(*self._plan.tree, formed=self._step.measure_formed)

    def find_span(self, slot: MicroBatchSlot) -> Span:
        """What this rank's part of `slot`, and those added up with it, are of the tree."""
        return self._plan.find_span(self._parts.rank, slot.first, slot.index + 1)

    def add_up(
        self, own: Pieces, kept: TreeSum[Tensor], like: Tensor, turn: int, last: bool
    ) -> Waits:
        """Send `own` [slices x slice], what this rank hands over the `turn`-th time, and add to
        `kept` this rank's slice [slice, as `like`] of what all of a copy do."""
        width, axis = like.numel(), self._slices
        spans = self._plan.list_hand_over(self._copies.rank, turn)
        if self._node.size > 1:
            own = yield from self._add_up_node(own, like, spans)
            size, axis = self._node.size, self._nodes
            firsts = range(0, len(spans), size)
            spans = [join_spans(_flatten(spans[n : n + size]), *self._plan.tree) for n in firsts]
        sent = PendingTransfer.to_all(own, width, [len(each) for each in spans], axis, like)
        own.clear()
        yield sent
        for span, piece in zip(_flatten(spans), sent.incoming, strict=True):
            kept.add(span, piece)
        if not last:  # what waits for other turns is not to hold all that came in this one
            buffer = sent.incoming.untyped_storage().data_ptr()
            kept.replace(lambda x: x.clone() if x.untyped_storage().data_ptr() == buffer else x)

    def _add_up_node(
        self, own: Pieces, like: Tensor, spans: Sequence[Sequence[Span]]
    ) -> Generator[PendingTransfer, None, Pieces]:
        """What the ranks of this node hand over, of the slices of those at this rank's place on any
        node: sums [nodes x slice] of subtrees."""
        size, count = self._node.size, self._nodes.size
        first = self._nodes.rank * size
        spans = spans[first : first + size]
        by_place = [
            (span, piece.view(count, size, -1).transpose(0, 1).reshape(-1)) for span, piece in own
        ]
        own.clear()
        width = count * like.numel()
        sent = PendingTransfer.to_all(
            by_place, width, [len(each) for each in spans], self._node, like
        )
        by_place.clear()
        yield sent
        tree = self.make_tree_of_received()
        for span, piece in zip(_flatten(spans), sent.incoming, strict=True):
            tree.add(span, piece)
        return tree.parts()

    def fill(self, output: Tensor, kept: TreeSum[Tensor]) -> Waits:
        """Fill `output` with the sum of `kept` of all copies of the model, each of which adds up a
        part of it."""
        if self._copies.size == 1:
            output.copy_(kept.whole())
            return
        count, elements, spans = self._copies.size, output.numel(), self._plan.list_copies()
        width = -(-elements // count)
        padding = (0, width * count - elements)
        own = [
            (span, torch.nn.functional.pad(piece.reshape(-1), padding))
            for span, piece in kept.parts()
        ]
        sent = PendingTransfer.to_all(
            own, width, [len(each) for each in spans], self._copies, output
        )
        own.clear()
        yield sent
        tree = self.make_tree_of_received()
        for span, piece in zip(_flatten(spans), sent.incoming, strict=True):
            tree.add(span, piece)
        part, whole = tree.whole(), output.new_empty(count * width)
        group = self._copies.group
        work = dist.all_gather_into_tensor(whole, part, group=group, async_op=True)
        yield PendingTransfer(work, part, whole)
        output.copy_(whole[:elements].view(output.shape))


def _flatten(spans: Sequence[Sequence[Span]]) -> list[Span]:
    return [span for each in spans for span in each]


class StepSum:
    """Where a step has got to; all its units look at the same."""

    def __init__(
        self,
        micro_batches: int,
        virtual: int,
        mesh: WorkerMesh,
        peers: int = 1,
        measured: bool = False,
    ) -> None:
        """`peers`: see tokens.batches.assign_micro_batches; `measured`: norms are kept."""
        self.micro_batches, self.virtual, self.peers = micro_batches, virtual, peers
        self.shape = micro_batches, virtual
        # Parts of virtual workers are not whole gradients, so their norms say nothing.
        parts = mesh.parts.size * mesh.tensor.size * mesh.pipeline.size
        self.measured = measured and parts == 1
        self.summation = Summation(self, mesh, mesh.slices, mesh.parts)
        self.of_experts = Summation(self, mesh, mesh.expert_slices, Axis())
        # Of what was added up; their squares are added in the order of their keys.
        self.norms: dict[tuple[int, int], Tensor] = {}
        self.under_way: list[UnitReduction] = []  # units that were not added up yet, oldest first
        self.sent = 0  # units
        self.slot = MicroBatchSlot(0, False, 0, closes=False)
        self.last = False

    def advance(self, waiting: int, clock: PhaseClock) -> None:
        """Take all units under way but the `waiting` youngest a level further."""
        for each in self.under_way[: len(self.under_way) - waiting]:
            each.advance(clock)
        self.under_way = [each for each in self.under_way if not each.over]

    def measure_own(self, gradient: Tensor, key: tuple[int, int] | None = None) -> None:
        """`gradient` is what `slot` hands over: it counts if that is all of a virtual worker."""
        slot = self.slot
        if self.measured and find_virtual_worker(slot.index, *self.shape) == (
            slot.first,
            slot.index + 1,
        ):
            self._measure(gradient, key)

    def measure_formed(self, span: Span, value: Tensor) -> None:
        """`value`, of `span`, has come together from what several ranks have handed over."""
        if self.measured and find_virtual_worker(span[0], *self.shape) == span:
            self._measure(value)

    def _measure(self, gradient: Tensor, key: tuple[int, int] | None = None) -> None:
        norm = torch.linalg.vector_norm(gradient, dtype=torch.float64)
        self.norms[key or (0, len(self.norms))] = norm


class UnitReduction:
    """One unit's way through the levels, which has begun."""

    def __init__(self, levels: Waits) -> None:
        self._levels = levels
        self.over = False
        self._sent: PendingTransfer | None = next(levels)

    def advance(self, clock: PhaseClock) -> None:
        """Wait for what is on its way, add it up, and send what it comes to, if it goes on."""
        assert self._sent is not None
        with clock.time_waiting():
            self._sent.work.wait()
        self._sent = None
        self._sent = next(self._levels, None)
        self.over = self._sent is None
