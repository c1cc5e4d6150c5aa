from dataclasses import dataclass

import pytest
from support.link_bytes import count_bytes_by_rank


@dataclass(frozen=True)
class LinkBytes:
    """Bytes of one sum over nodes of equal size, for the rank or node that sends the most."""

    inside: float  # bytes that a rank sends to others of its node
    across: float  # bytes that a node sends to other nodes, over its network card


def sum_bytes(
    size: float,
    micro_batches: int,
    virtual: int,
    ranks: int,
    of_a_node: int,
    by_micro_batch: bool = False,
) -> LinkBytes:
    """Return the bytes on the busiest links in the exact sum of gradients of `size` bytes."""
    sent = count_bytes_by_rank(size, micro_batches, virtual, ranks, of_a_node, by_micro_batch)
    nodes = [sent[first : first + of_a_node] for first in range(0, ranks, of_a_node)]
    return LinkBytes(
        inside=max(inside for inside, _ in sent),
        across=max(sum(across for _, across in node) for node in nodes),
    )


def reduce_scatter_bytes(size: float, ranks: int, of_a_node: int) -> LinkBytes:
    """Return the bytes on each link of a two-level reduce-scatter: within nodes, then across.

    For comparison, one flat ring that enters and leaves each node once carries `size` (ranks - 1) /
    ranks over each link and card.
    """
    nodes = ranks // of_a_node
    return LinkBytes(size * (of_a_node - 1) / of_a_node, size * (nodes - 1) / nodes)


@pytest.mark.parametrize("ranks", [16, 64, 1024])
def test_bytes_equal_those_of_a_hierarchical_reduce_scatter(ranks):
    """The micro-batches of a node are one subtree here; docs/evidence/scale.md has the table."""
    for micro_batches in (ranks, 4 * ranks):
        exact = sum_bytes(1.0, micro_batches, ranks, ranks, 8)
        plain = reduce_scatter_bytes(1.0, ranks, 8)
        assert exact.across == pytest.approx(plain.across)
        assert exact.inside == pytest.approx(plain.inside)


def test_a_sum_without_levels_carries_that_many_times_as_much_as_a_node_has_ranks():
    flat = sum_bytes(1.0, 64, 64, 64, 1)
    assert 8 * flat.across == pytest.approx(8 * 63 / 64)  # 8 ranks share one network card
    assert sum_bytes(1.0, 64, 64, 64, 8).across == pytest.approx(7 / 8)
