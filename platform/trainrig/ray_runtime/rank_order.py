"""In which order workers become ranks, so that those who talk most are on one node."""

from collections.abc import Sequence


def order_by_node(nodes: Sequence[str], sizes: Sequence[int]) -> list[int]:
    """The workers by rank, of whom each is on one of `nodes`.

    Neighbours in rank are a group of the first of `sizes`, such groups are one of the second, and
    so on. Of each size as many groups lie on one node as can; the largest come first. What is left
    of nodes makes groups that span some.
    """
    left: dict[str, list[int]] = {}
    for worker, node in enumerate(nodes):
        left.setdefault(node, []).append(worker)
    order: list[int] = []
    for size in (*reversed(sizes), 1):
        for there in left.values():
            whole = len(there) // size * size
            order += there[:whole]
            del there[:whole]
    return order
