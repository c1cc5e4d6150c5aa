"""One fixed order of adding up: a binary tree over numbered leaves.

Floating-point addition does not associate, so a sum is reproducible only if its brackets are. Here
they depend on three numbers alone, of leaves, of the runs that these are cut into, and of the parts
that runs are cut into: neither on who owns which leaf nor on what comes first. Leaves of a run are
added one after another, runs of a part by halves, parts by halves. So a subtree of one part alone
is a subtree of all parts, whatever their numbers.
"""

import functools
from collections.abc import Callable, Iterable
from typing import Generic, Protocol, Self, TypeVar

from trainrig.tokens.batches import assign_micro_batches

Span = tuple[int, int]  # the leaves from the first up to, without, the second


class Addend(Protocol):
    """What can be added into: a tensor, say."""

    def add_(self, other: Self, /) -> Self:
        """Add `other` to this, in place."""
        ...


Value = TypeVar("Value", bound=Addend)


class TreeSum(Generic[Value]):
    """The sum of the leaves 0 … `leaves` - 1, or of those of them that have come so far."""

    def __init__(
        self,
        leaves: int,
        runs: int | None = None,
        parts: int = 1,
        formed: Callable[[Span, Value], None] | None = None,
    ) -> None:
        """Build an empty sum.

        `runs`: that the leaves are cut into; None: each leaf is one. `parts`: that the runs are cut
        into, of as many runs and leaves each. `formed` is called with each sum that is made here,
        before anything is added to it.
        """
        self._parents = _find_parents(leaves, runs or leaves, parts)
        self._whole: Span = (0, leaves)
        self._nodes: dict[Span, Value] = {}
        self._formed = formed

    def add(self, span: Span, value: Value) -> None:
        """Add the sum `value` of the subtree `span`; it is the tree's from now on, to add into."""
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
        """Have `change` of each sum so far stand in its place."""
        self._nodes = {span: change(value) for span, value in self._nodes.items()}

    def parts(self) -> list[tuple[Span, Value]]:
        """The sums of the largest subtrees that are whole, from left to right."""
        return sorted(self._nodes.items(), key=lambda node: node[0])

    def whole(self) -> Value:
        """The sum of all leaves."""
        assert list(self._nodes) == [self._whole], f"{sorted(self._nodes)} of {self._whole}"
        return self._nodes[self._whole]


def find_largest_subtrees(begin: int, end: int, leaves: int, runs: int | None = None) -> list[Span]:
    """The fewest subtrees that hold exactly the leaves from `begin` to `end`, left to right."""
    return join_spans([(leaf, leaf + 1) for leaf in range(begin, end)], leaves, runs)


def join_spans(
    spans: Iterable[Span], leaves: int, runs: int | None = None, parts: int = 1
) -> list[Span]:
    """Return the fewest subtrees that the subtrees `spans` add up to, left to right."""
    tree: TreeSum[_Nothing] = TreeSum(leaves, runs, parts)
    for span in spans:
        tree.add(span, _Nothing())
    return [span for span, _ in tree.parts()]


class _Nothing:
    """To see which nodes of a tree meet, without a sum."""

    def add_(self, other: Self, /) -> Self:
        return self


@functools.lru_cache(maxsize=2**14)
def plan_hand_over(
    micro_batches: int, virtual: int, rank: int, world: int, peers: int = 1
) -> tuple[tuple[Span, ...], ...]:
    """The subtrees of micro-batches, of `virtual` runs, whose sums worker `rank` out of `world`
    hands over, each time that it does: once a step, or with `peers` once a round
    (`tokens.batches.assign_micro_batches`)."""
    slots = assign_micro_batches(micro_batches, virtual, rank, world, peers)
    spans = [((each.first, each.index + 1),) if each.real else () for each in slots]
    if peers > 1:
        return tuple(spans)
    closed = (each[0] for each, slot in zip(spans, slots, strict=True) if each and slot.closes)
    return (tuple(join_spans(closed, micro_batches, virtual)),)


@functools.lru_cache(maxsize=64)
def _find_parents(leaves: int, runs: int, parts: int) -> dict[Span, tuple[Span, Span, Span]]:
    """Return each node but the root → its parent, and the parent's left and right.

    The left of a node above the parts holds the largest power of two of them that leaves the right
    any, and the left of a node above the runs of a part as many of those: so what is a subtree
    among few is one among many. The right of a node in a run is its last leaf.
    """
    found: dict[Span, tuple[Span, Span, Span]] = {}
    cuts = [leaves * number // runs for number in range(runs + 1)]
    of_a_part = runs // parts

    def divide(node: Span, middle: int) -> tuple[Span, Span]:
        left, right = (node[0], middle), (middle, node[1])
        found[left] = found[right] = (node, left, right)
        return left, right

    open_nodes: list[Span] = [(0, runs)]  # by numbers of runs
    while open_nodes:
        begin, end = open_nodes.pop()
        first, last = cuts[begin], cuts[end]
        if end - begin > 1:
            unit = of_a_part if end - begin > of_a_part else 1
            count = (end - begin) // unit
            middle = begin + unit * (1 << ((count - 1).bit_length() - 1))
            divide((first, last), cuts[middle])
            open_nodes += [(begin, middle), (middle, end)]
            continue
        for leaf in range(last - 1, first, -1):
            divide((first, leaf + 1), leaf)
    return found
