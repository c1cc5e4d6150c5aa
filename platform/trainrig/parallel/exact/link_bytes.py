"""Model of the bytes on each link in the exact gradient sum of a step.

It follows the levels of `parallel.exact.exchange`, for one copy of the model. Tests compare it with
the bytes that real ranks send.
"""

from dataclasses import dataclass

from trainrig.parallel.exact.tree import Span, join_spans, plan_hand_over


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


def count_bytes_by_rank(
    size: float,
    micro_batches: int,
    virtual: int,
    ranks: int,
    of_a_node: int,
    by_micro_batch: bool = False,
) -> list[tuple[float, float]]:
    """Return the bytes that each rank sends within its node, and to other nodes."""
    peers = ranks if by_micro_batch else 1
    turns = [plan_hand_over(micro_batches, virtual, rank, ranks, peers) for rank in range(ranks)]
    # `one`: bytes of a slice
    one = size / ranks
    nodes = ranks // of_a_node
    by_node = 1 < of_a_node < ranks
    found = []
    for rank, own in enumerate(turns):
        pieces = sum(map(len, own))
        if not by_node:
            sent = pieces * one * (ranks - 1)
            found.append((sent, 0.0) if nodes == 1 else (0.0, sent))
            continue
        node = turns[rank // of_a_node * of_a_node :][:of_a_node]
        joint = 0
        for turn in range(len(own)):
            spans: list[Span] = [span for rank_turns in node for span in rank_turns[turn]]
            joint += len(join_spans(spans, micro_batches, virtual))
        found.append((pieces * nodes * one * (of_a_node - 1), joint * one * (nodes - 1)))
    return found
