"""Level-by-level exchange of partial gradient sums between ranks.

A rank hands over a few subtrees of the step's tree (`parallel.sharding.sum_tree`), each the sum of
some of its micro-batches. A receiver adds them at their place in the tree and hands over the
resulting sums, so every level carries as few sums as possible.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor

from trainrig.parallel.mesh import Axis, WorkerMesh
from trainrig.parallel.phase_clock import PhaseClock
from trainrig.parallel.sharding.sum_tree import Span, SumPlan, TreeSum, join_spans
from trainrig.tokens.batches import MicroBatchSlot, find_virtual_worker

# yields each transfer that must complete before the generator continues
Waits = Generator["PendingTransfer", None, None]
Pieces = list[tuple[Span, Tensor]]  # subtrees with their sums


@dataclass(eq=False)
class PendingTransfer:
    """An asynchronous collective and its buffers."""

    work: Any
    outgoing: Tensor  # kept alive until it is sent
    incoming: Tensor  # [pieces of all ranks, elements]

    @classmethod
    def to_all(
        cls, pieces: Pieces, width: int, counts: Sequence[int], axis: Axis, like: Tensor
    ) -> Self:
        """Start to send each of `pieces` [ranks x width] to all ranks of `axis`, one row to each.

        `counts` is the number of pieces that each rank sends. `like`: example tensor for ranks
        without pieces.
        """
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
    """Tree of one step, and the ranks that hold parts of it.

    The gradients are sliced over `slices`, and each rank of `parts` has a part of a micro-batch's
    contribution.
    """

    def __init__(self, step: "StepSum", mesh: WorkerMesh, slices: Axis, parts: Axis) -> None:
        self._step = step
        self._slices = slices
        self._parts = parts
        self._copies = mesh.copies
        self._node = mesh.node
        self._nodes = mesh.nodes
        self._plan = SumPlan(
            step.micro_batches,
            step.virtual,
            slices.size,
            parts.size,
            mesh.copies.size,
            step.peers,
        )

    def make_tree(self) -> TreeSum[Tensor]:
        """Return an empty tree over all leaves."""
        return TreeSum(*self._plan.tree)

    def make_tree_of_received(self) -> TreeSum[Tensor]:
        """Return an empty tree that measures the virtual workers whose sums are completed in it."""
        return TreeSum(*self._plan.tree, formed=self._step.measure_formed)

    def find_span(self, slot: MicroBatchSlot) -> Span:
        """Return the leaves of this rank's part of `slot` and the micro-batches before it.

        Those before it are the ones accumulated into the same gradient.
        """
        return self._plan.find_span(self._parts.rank, slot.first, slot.index + 1)

    def add_up(
        self, own: Pieces, kept: TreeSum[Tensor], like: Tensor, turn: int, last: bool
    ) -> Waits:
        """Send this rank's sums `own` [slices x slice], and add what it receives to `kept`.

        It receives its own slice [slice, as `like`] of the sums of all ranks of a copy. `turn`:
        number of times this rank handed over before. `last`: this is the last time in the step.
        """
        width = like.numel()
        axis = self._slices
        spans = self._plan.list_hand_over(self._copies.rank, turn)
        if self._node.size > 1:
            own = yield from self._add_up_node(own, like, spans)
            size = self._node.size
            axis = self._nodes
            firsts = range(0, len(spans), size)
            spans = [join_spans(_flatten(spans[n : n + size]), *self._plan.tree) for n in firsts]
        sent = PendingTransfer.to_all(
            own, width, [len(rank_spans) for rank_spans in spans], axis, like
        )
        own.clear()
        yield sent
        for span, piece in zip(_flatten(spans), sent.incoming, strict=True):
            kept.add(span, piece)
        # copies, so that sums that wait for other turns do not keep the whole receive buffer alive
        if not last:
            buffer = sent.incoming.untyped_storage().data_ptr()
            kept.replace(lambda x: x.clone() if x.untyped_storage().data_ptr() == buffer else x)

    def _add_up_node(
        self, own: Pieces, like: Tensor, spans: Sequence[Sequence[Span]]
    ) -> Generator[PendingTransfer, None, Pieces]:
        """Return this node's sums [nodes x slice] of subtrees, from the sums of its ranks.

        The slices are those of the ranks with this rank's position on any node.
        """
        size = self._node.size
        count = self._nodes.size
        first = self._nodes.rank * size
        spans = spans[first : first + size]
        by_place = [
            (span, piece.view(count, size, -1).transpose(0, 1).reshape(-1)) for span, piece in own
        ]
        own.clear()
        width = count * like.numel()
        sent = PendingTransfer.to_all(
            by_place, width, [len(rank_spans) for rank_spans in spans], self._node, like
        )
        by_place.clear()
        yield sent
        tree = self.make_tree_of_received()
        for span, piece in zip(_flatten(spans), sent.incoming, strict=True):
            tree.add(span, piece)
        return tree.list_sums()

    def fill(self, output: Tensor, kept: TreeSum[Tensor]) -> Waits:
        """Fill `output` with the sum of `kept` over all copies of the model.

        Each copy adds up a part of it.
        """
        if self._copies.size == 1:
            output.copy_(kept.whole())
            return
        count = self._copies.size
        elements = output.numel()
        spans = self._plan.list_copies()
        width = -(-elements // count)
        padding = (0, width * count - elements)
        own = [
            (span, torch.nn.functional.pad(piece.reshape(-1), padding))
            for span, piece in kept.list_sums()
        ]
        sent = PendingTransfer.to_all(
            own, width, [len(copy_spans) for copy_spans in spans], self._copies, output
        )
        own.clear()
        yield sent
        tree = self.make_tree_of_received()
        for span, piece in zip(_flatten(spans), sent.incoming, strict=True):
            tree.add(span, piece)
        part = tree.whole()
        whole = output.new_empty(count * width)
        group = self._copies.group
        work = dist.all_gather_into_tensor(whole, part, group=group, async_op=True)
        yield PendingTransfer(work, part, whole)
        output.copy_(whole[:elements].view(output.shape))


def _flatten(spans: Sequence[Sequence[Span]]) -> list[Span]:
    return [span for rank_spans in spans for span in rank_spans]


class StepSum:
    """State of a step's gradient sums, which all units share."""

    def __init__(
        self,
        micro_batches: int,
        virtual: int,
        mesh: WorkerMesh,
        peers: int = 1,
        measured: bool = False,
    ) -> None:
        """`peers`: see tokens.batches.assign_micro_batches. `measured`: whether norms are kept."""
        self.micro_batches = micro_batches
        self.virtual = virtual
        self.peers = peers
        self.shape = micro_batches, virtual
        # The norm of a part says nothing about the norm of a virtual worker's whole gradient.
        parts = mesh.parts.size * mesh.tensor.size * mesh.pipeline.size
        self.measured = measured and parts == 1
        self.summation = Summation(self, mesh, mesh.slices, mesh.parts)
        self.of_experts = Summation(self, mesh, mesh.expert_slices, Axis())
        # Norms of virtual workers' gradients; their squares are added in the order of the keys.
        self.norms: dict[tuple[int, int], Tensor] = {}
        self.under_way: list[UnitReduction] = []  # units with transfers in progress, oldest first
        self.sent = 0  # number of units sent in this step
        self.slot = MicroBatchSlot(0, False, 0, closes=False)
        self.last = False

    def advance(self, waiting: int, clock: PhaseClock) -> None:
        """Advance all units in progress by one level, except for the `waiting` youngest."""
        for unit in self.under_way[: len(self.under_way) - waiting]:
            unit.advance(clock)
        self.under_way = [unit for unit in self.under_way if not unit.over]

    def measure_own(self, gradient: Tensor, key: tuple[int, int] | None = None) -> None:
        """Measure the norm of `gradient`, handed over with `slot`.

        Only the gradient of a whole virtual worker counts.
        """
        slot = self.slot
        if self.measured and find_virtual_worker(slot.index, *self.shape) == (
            slot.first,
            slot.index + 1,
        ):
            self._measure(gradient, key)

    def measure_formed(self, span: Span, value: Tensor) -> None:
        """Measure the norm of the sum `value` of `span`, if it is a whole virtual worker's.

        The sum was completed from parts of several ranks.
        """
        if self.measured and find_virtual_worker(span[0], *self.shape) == span:
            self._measure(value)

    def _measure(self, gradient: Tensor, key: tuple[int, int] | None = None) -> None:
        norm = torch.linalg.vector_norm(gradient, dtype=torch.float64)
        self.norms[key or (0, len(self.norms))] = norm


class UnitReduction:
    """Exchange of one unit's gradient through all levels; starts the first transfer."""

    def __init__(self, levels: Waits) -> None:
        self._levels = levels
        self.over = False
        self._sent: PendingTransfer | None = next(levels)

    def advance(self, clock: PhaseClock) -> None:
        """Wait for the current transfer, add up what it brought, and start the next one, if any."""
        assert self._sent is not None
        with clock.time_waiting():
            self._sent.work.wait()
        self._sent = None
        self._sent = next(self._levels, None)
        self.over = self._sent is None
