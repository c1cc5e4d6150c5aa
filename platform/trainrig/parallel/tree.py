"""One fixed order of adding up: a binary tree over numbered leaves.

Floating-point addition does not associate, so a sum is reproducible only if its brackets are. Here
they depend on the number of leaves alone: neither on who owns which leaf nor on what comes first.
"""

import functools
from typing import Generic, Protocol, Self, TypeVar

Span = tuple[int, int]  # the leaves from the first up to, without, the second


class Addend(Protocol):
    """What can be added into: a tensor, say."""

    def add_(self, other: Self, /) -> Self:
        """Add `other` to this, in place."""
        ...


Value = TypeVar("Value", bound=Addend)


class TreeSum(Generic[Value]):
    """The sum of the leaves 0 … `leaves` - 1, or of those of them that have come so far."""

    def __init__(self, leaves: int) -> None:
        self._parents = _parents(leaves)
        self._whole: Span = (0, leaves)
        self._nodes: dict[Span, Value] = {}

    def add(self, span: Span, value: Value) -> None:
        """Add the sum `value` of the subtree `span`; it is the tree's from now on, to add into."""
        while span in self._parents:
            parent, left, right = self._parents[span]
            other = self._nodes.pop(left if span == right else right, None)
            if other is None:
                break
            value = value.add_(other) if span == left else other.add_(value)
            span = parent
        assert span not in self._nodes, f"the subtree {span} came twice"
        self._nodes[span] = value

    def parts(self) -> list[tuple[Span, Value]]:
        """The sums of the largest subtrees that are whole, from left to right."""
        return sorted(self._nodes.items(), key=lambda node: node[0])

    def whole(self) -> Value:
        """The sum of all leaves."""
        assert list(self._nodes) == [self._whole], f"{sorted(self._nodes)} of {self._whole}"
        return self._nodes[self._whole]


def largest_subtrees(begin: int, end: int, leaves: int) -> list[Span]:
    """The fewest subtrees that hold exactly the leaves from `begin` to `end`, left to right."""
    tree: TreeSum[_Nothing] = TreeSum(leaves)
    for leaf in range(begin, end):
        tree.add((leaf, leaf + 1), _Nothing())
    return [span for span, _ in tree.parts()]


class _Nothing:
    """To see which nodes of a tree meet, without a sum."""

    def add_(self, other: Self, /) -> Self:
        return self


@functools.lru_cache(maxsize=64)
def _parents(leaves: int) -> dict[Span, tuple[Span, Span, Span]]:
    """Each node but the root → its parent, and the parent's left and right.

    The left of a node holds the largest power of two of leaves that leaves the right any: so what
    is a subtree among few leaves is one among many.
    """
    found: dict[Span, tuple[Span, Span, Span]] = {}
    open_nodes: list[Span] = [(0, leaves)]
    while open_nodes:
        begin, end = open_nodes.pop()
        if end - begin > 1:
            middle = begin + (1 << ((end - begin - 1).bit_length() - 1))
            left, right = (begin, middle), (middle, end)
            found[left] = found[right] = ((begin, end), left, right)
            open_nodes += [left, right]
    return found
