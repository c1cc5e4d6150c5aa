"""A fixed order of addition: a binary tree over numbered leaves.

In training, a leaf is the gradient of one micro-batch. Floating-point addition is not associative,
so the sum has the same bits only if the leaves are always added in the same order. The order
depends on the numbers of leaves, runs and parts. It depends neither on the worker that computes a
leaf nor on the order of arrival.

- A *run* holds the leaves of one virtual worker (`parallel.exact.deterministic`). They are added
  one after another.
- A *part* holds equally many runs: one part for each of the ranks that share each micro-batch
  (context or expert parallelism). With a single part, all runs are in it.

Runs are added as a binary tree in which the left child of a node holds the largest power of two of
runs that leaves at least one to the right: 6 runs are 4 + 2, 7 are 4 + (2 + 1). The sums
of parts are added in the same way. So the tree of one part alone is a subtree of the whole tree.
"""

import functools
from collections.abc import Callable, Iterable
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


def find_largest_subtrees(begin: int, end: int, leaves: int, runs: int | None = None) -> list[Span]:
    """Return the fewest subtrees with exactly the leaves `begin` … `end` - 1, left to right."""
    return join_spans([(leaf, leaf + 1) for leaf in range(begin, end)], leaves, runs)


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
