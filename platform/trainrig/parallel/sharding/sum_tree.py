"""A fixed order of addition: a binary tree over numbered leaves, and how sums are sent.

Floating-point addition is not associative, so a sum is reproducible only if its brackets are. Here
they depend on three numbers alone: of leaves, of the runs that the leaves are cut into, and of the
parts that the runs are cut into. They depend neither on the owner of a leaf nor on the order of
arrival. Leaves of a run are added one after another, runs of a part by halves, and parts by halves.
A subtree of one part alone is therefore a subtree of all parts, whatever their numbers.

Plan of which sums the ranks of a step hand over to each other, and a check of the plan.

A sender and its receivers must agree on the number of sums before the first byte travels. Both read
this plan, which depends on numbers alone, so it runs without torch and without ranks.
"""

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, Protocol, Self, TypeVar

from trainrig.tokens.batches import assign_micro_batches

Span = tuple[int, int]  # leaves below a node of the tree: the first, and the one after the last


class Addend(Protocol):
    """Protocol of values that can be added to in place, such as tensors."""

    def add_(self, other: Self, /) -> Self:
        """Add `other` to this, in place."""
        ...


Value = TypeVar("Value", bound=Addend)


class TreeSum(Generic[Value]):
    """Sum of the leaves 0 … `leaves` - 1 in a fixed order, or of those that were added so far."""

    def __init__(
        self,
        leaves: int,
        runs: int | None = None,
        parts: int = 1,
        formed: Callable[[Span, Value], None] | None = None,
    ) -> None:
        """Build an empty sum.

        `runs`: number of runs; None: each leaf is a run. `parts`: number of parts, with equally
        many runs and leaves each. `formed` is called with the sum of each node as soon as both its
        children are added, before anything else is added to it.
        """
        self._parents = _find_parents(leaves, runs or leaves, parts)
        self._whole: Span = (0, leaves)
        self._nodes: dict[Span, Value] = {}
        self._formed = formed

    def add(self, span: Span, value: Value) -> None:
        """Add the sum `value` of the subtree `span`; the tree owns it and may add into it."""
        while span in self._parents:
            parent, left, right = self._parents[span]
            other = self._nodes.pop(left if span == right else right, None)
            if other is None:
                break
            value = value.add_(other) if span == left else other.add_(value)
            span = parent
            if self._formed is not None:
                self._formed(span, value)
        assert span not in self._nodes, f"the subtree {span} came twice"
        self._nodes[span] = value

    def replace(self, change: Callable[[Value], Value]) -> None:
        """Replace each sum so far by the result of `change`."""
        self._nodes = {span: change(value) for span, value in self._nodes.items()}

    def list_sums(self) -> list[tuple[Span, Value]]:
        """Return the sums so far, of the largest complete subtrees, left to right."""
        return sorted(self._nodes.items(), key=lambda node: node[0])

    def whole(self) -> Value:
        """Return the sum of all leaves; all must have been added."""
        assert list(self._nodes) == [self._whole], f"{sorted(self._nodes)} of {self._whole}"
        return self._nodes[self._whole]


def join_spans(
    spans: Iterable[Span], leaves: int, runs: int | None = None, parts: int = 1
) -> list[Span]:
    """Return the fewest subtrees that the subtrees `spans` add up to, left to right."""
    tree: TreeSum[_Nothing] = TreeSum(leaves, runs, parts)
    for span in spans:
        tree.add(span, _Nothing())
    return [span for span, _ in tree.list_sums()]


class _Nothing:
    """Value without content, to see which nodes of a tree combine."""

    def add_(self, other: Self, /) -> Self:
        return self


@functools.lru_cache(maxsize=2**14)
def plan_hand_over(
    micro_batches: int, virtual: int, rank: int, world: int, peers: int = 1
) -> tuple[tuple[Span, ...], ...]:
    """Return the spans of micro-batches whose gradient sums worker `rank` of `world` sends.

    It sends them to the workers that add up all sums of the step. `virtual` is the number of
    virtual workers, and so of runs. The result has one tuple for each time that the worker sends:
    one for the step, or with `peers` above 1 one for each micro-batch, since then a worker adds up
    none itself. See `tokens.batches.assign_micro_batches` for the micro-batches of a worker.
    """
    slots = assign_micro_batches(micro_batches, virtual, rank, world, peers)
    spans = [((slot.first, slot.index + 1),) if slot.real else () for slot in slots]
    if peers > 1:
        return tuple(spans)
    complete = (
        slot_spans[0]
        for slot_spans, slot in zip(spans, slots, strict=True)
        if slot_spans and slot.closes
    )
    return (tuple(join_spans(complete, micro_batches, virtual)),)


@functools.lru_cache(maxsize=64)
def _find_parents(leaves: int, runs: int, parts: int) -> dict[Span, tuple[Span, Span, Span]]:
    """Return, for each node except the root, its parent and the parent's left and right child.

    Of n runs, or n parts, the left child holds the largest power of two below n. So 1, 2, 4, 8 …
    runs that form a node still form it if more runs follow. The right child of a node within a run
    is the node's last leaf.
    """
    found: dict[Span, tuple[Span, Span, Span]] = {}
    cuts = [leaves * number // runs for number in range(runs + 1)]
    runs_of_a_part = runs // parts

    def divide(node: Span, middle: int) -> tuple[Span, Span]:
        left = (node[0], middle)
        right = (middle, node[1])
        found[left] = found[right] = (node, left, right)
        return left, right

    open_nodes: list[Span] = [(0, runs)]  # ranges of runs
    while open_nodes:
        begin, end = open_nodes.pop()
        first = cuts[begin]
        last = cuts[end]
        if end - begin > 1:
            step = runs_of_a_part if end - begin > runs_of_a_part else 1
            count = (end - begin) // step  # number of parts, or of runs within one part
            middle = begin + step * (1 << ((count - 1).bit_length() - 1))
            divide((first, last), cuts[middle])
            open_nodes += [(begin, middle), (middle, end)]
            continue
        for leaf in range(last - 1, first, -1):
            divide((first, leaf + 1), leaf)
    return found


@dataclass(frozen=True)
class SumPlan:
    """Plan of the sums that the ranks with slices of the same gradients hand over in a step.

    The leaves of the tree are the micro-batches of the first part, then those of the second, and so
    on. So the leaves that a rank adds up itself are neighbours.
    """

    micro_batches: int  # micro-batches of the global batch
    virtual: int  # number of virtual workers, at most `micro_batches`
    slices: int = 1  # ranks of a copy of the model, each of which has a slice of every gradient
    parts: int = 1  # neighbours among `slices` that each have a part of the same micro-batches
    copies: int = 1  # copies of the model
    peers: int = 1  # see tokens.batches.assign_micro_batches

    @property
    def tree(self) -> tuple[int, int, int]:
        """The numbers of leaves, runs and parts of the tree: the arguments of `TreeSum`."""
        return self.micro_batches * self.parts, self.virtual * self.parts, self.parts

    def find_span(self, part: int, first: int, after: int) -> Span:
        """Return the leaves of `part` for micro-batches from `first` up to, without, `after`."""
        begin = part * self.micro_batches
        return begin + first, begin + after

    def list_hand_over(self, copy: int, turn: int) -> list[list[Span]]:
        """Return the sums that each rank of `copy` hands over in turn `turn`, by rank."""
        found = []
        for rank in range(self.slices):
            spans = self._list_own(copy, rank)[turn]
            found.append([self.find_span(rank % self.parts, *span) for span in spans])
        return found

    def list_copies(self) -> list[list[Span]]:
        """Return the sums that each copy of the model has after its last turn, by copy."""
        found = []
        turns = len(self._list_own(0, 0))
        for copy in range(self.copies):
            ranks = [
                rank_spans
                for turn in range(turns)
                for rank_spans in self.list_hand_over(copy, turn)
            ]
            spans = [span for own in ranks for span in own]
            found.append(join_spans(spans, *self.tree))
        return found

    def find_fault(self) -> str | None:
        """Return in words why the plan does not add up, or None if it does.

        First the sums that each rank gets from its own micro-batches are compared with those that
        the others expect. Then all of them together must form one sum.
        """
        handed_over: list[Span] = []
        turns = len(self._list_own(0, 0))
        for copy in range(self.copies):
            awaited = [self.list_hand_over(copy, turn) for turn in range(turns)]
            for rank in range(self.slices):
                has = self._add_up_own(copy, rank)
                expected = [spans[rank] for spans in awaited]
                if has != expected:
                    number = copy * self.slices + rank
                    return f"rank {number} has the sums {has}, and the others expect {expected}"
                handed_over += [span for turn in has for span in turn]
        left = join_spans(handed_over, *self.tree)
        if left != [(0, self.tree[0])]:
            return f"the sums {left} are not one sum of {self.tree[0]} parts of micro-batches"
        return None

    def _list_own(self, copy: int, rank: int) -> tuple[tuple[Span, ...], ...]:
        """Return the micro-batches that a rank of `copy` hands over, by turn and place."""
        share = self._find_share(copy, rank)
        return plan_hand_over(self.micro_batches, self.virtual, *share, self.peers)

    def _add_up_own(self, copy: int, rank: int) -> list[list[Span]]:
        """Return the sums, by turn and place, that a rank has of the micro-batches it computes."""
        share = self._find_share(copy, rank)
        slots = assign_micro_batches(self.micro_batches, self.virtual, *share, self.peers)
        waiting: list[Span] = []
        found = []
        for number, slot in enumerate(slots):
            last = number == len(slots) - 1
            if slot.real and (slot.closes or last):
                waiting.append(self.find_span(rank % self.parts, slot.first, slot.index + 1))
            if last or self.peers > 1:
                found.append(join_spans(waiting, *self.tree))
                waiting = []
        return found

    def _find_share(self, copy: int, rank: int) -> tuple[int, int]:
        """Return which of how many replicas a rank of `copy` is part of."""
        replicas = self.slices // self.parts
        return copy * replicas + rank // self.parts, replicas * self.copies
