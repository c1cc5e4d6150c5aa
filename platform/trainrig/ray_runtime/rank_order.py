"""The order of workers as ranks, which puts ranks that communicate most on the same node."""

from collections.abc import Sequence


def order_by_node(nodes: Sequence[str], sizes: Sequence[int]) -> list[int]:
    """Return the indices of the workers in the order of their ranks.

    `nodes` holds the node of each worker, and `sizes` the sizes of the communication groups,
    innermost first. Consecutive ranks form groups of the first size, consecutive groups form groups
    of the second size, and so on. As many groups as possible lie on a single node, the largest
    first. Workers that are left over form groups that span several nodes.
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
