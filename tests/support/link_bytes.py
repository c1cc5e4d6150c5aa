"""Model of the bytes on each link in the exact gradient sum of a step.

It follows the levels of `parallel.sharding.sum_exchange`, for one copy of the model. Tests compare
it with the bytes that real ranks send.
"""

from trainrig.parallel.sharding.sum_tree import Span, join_spans, plan_hand_over


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
    one = size / ranks  # bytes of a slice
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
