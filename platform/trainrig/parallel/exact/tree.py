"""A fixed order of addition: a binary tree over numbered leaves.

Floating-point addition is not associative, so a sum is reproducible only if its brackets are. Here
they depend on three numbers alone: of leaves, of the runs that the leaves are cut into, and of the
parts that the runs are cut into. They depend neither on the owner of a leaf nor on the order of
arrival. Leaves of a run are added one after another, runs of a part by halves, and parts by halves.
A subtree of one part alone is therefore a subtree of all parts, whatever their numbers.
"""

import functools
from collections.abc import Callable, Iterable
from typing import Generic, Protocol, Self, TypeVar

from trainrig.tokens.batches import assign_micro_batches

Span = tuple[int, int]  # range of leaves: the first, and the one after the last


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

        `runs`: number of runs that the leaves are cut into; None: each leaf is a run. `parts`:
        number of parts that the runs are cut into, with equally many runs and leaves each. `formed`
        is called with each sum that is completed here, before anything else is added to it.
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

    def parts(self) -> list[tuple[Span, Value]]:
        """Return the sums of the largest complete subtrees, from left to right."""
        return sorted(self._nodes.items(), key=lambda node: node[0])

    def whole(self) -> Value:
        """Return the sum of all leaves; all must have been added."""
        assert list(self._nodes) == [self._whole], f"{sorted(self._nodes)} of {self._whole}"
        return self._nodes[self._whole]


def find_largest_subtrees(begin: int, end: int, leaves: int, runs: int | None = None) -> list[Span]:
    """Return the fewest subtrees that hold exactly the leaves `begin` to `end`, left to right."""
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
    """Value without content, to see which nodes of a tree combine."""

    def add_(self, other: Self, /) -> Self:
        return self


@functools.lru_cache(maxsize=2**14)
def plan_hand_over(
    micro_batches: int, virtual: int, rank: int, world: int, peers: int = 1
) -> tuple[tuple[Span, ...], ...]:
    """Return the subtrees of micro-batches whose sums worker `rank` of `world` hands over.

    The runs of the tree belong to the `virtual` virtual workers. There is one tuple for each time
    that the worker hands over: once a step, or once a round with `peers`
    (`tokens.batches.assign_micro_batches`).
    """
    slots = assign_micro_batches(micro_batches, virtual, rank, world, peers)
    spans = [((slot.first, slot.index + 1),) if slot.real else () for slot in slots]
    if peers > 1:
        return tuple(spans)
    closed = (
        closed_spans[0]
        for closed_spans, slot in zip(spans, slots, strict=True)
        if closed_spans and slot.closes
    )
    return (tuple(join_spans(closed, micro_batches, virtual)),)


@functools.lru_cache(maxsize=64)
def _find_parents(leaves: int, runs: int, parts: int) -> dict[Span, tuple[Span, Span, Span]]:
    """Return, for each node except the root, its parent and the parent's left and right child.

    The left child of a node above the parts holds the largest power of two of them that leaves at
    least one to the right. The same holds for the left child of a node above the runs of a part. A
    subtree among few runs is therefore one among many. The right child of a node within a run is
    the node's last leaf.
    """
    found: dict[Span, tuple[Span, Span, Span]] = {}
    cuts = [leaves * number // runs for number in range(runs + 1)]
    of_a_part = runs // parts

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
            unit = of_a_part if end - begin > of_a_part else 1
            count = (end - begin) // unit
            middle = begin + unit * (1 << ((count - 1).bit_length() - 1))
            divide((first, last), cuts[middle])
            open_nodes += [(begin, middle), (middle, end)]
            continue
        for leaf in range(last - 1, first, -1):
            divide((first, leaf + 1), leaf)
    return found
