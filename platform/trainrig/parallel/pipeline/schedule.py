"""Order in which a rank of a pipeline runs forward and backward passes of micro-batches.

GPipe: Huang et al. 2019, arXiv:1811.06965. 1F1B, and interleaved 1F1B, in which a rank has several
stages: Narayanan et al. 2021, arXiv:2104.04473, sections 2.2.1 and 2.2.2. In all of them each stage
runs backward passes in the order of micro-batches, as a single process does, so gradients are added
in one order.

With chunks, stages go round the ranks: chunk c of rank p of P is stage c P + p.
"""

from typing import Literal, NamedTuple

Schedule = Literal["1F1B", "GPipe", "interleaved"]


class Turn(NamedTuple):
    """One pass of a micro-batch through one of the rank's stages."""

    forward: bool  # a forward pass, else a backward pass
    number: int  # number of the micro-batch within the replica's step
    chunk: int = 0  # number of the rank's stage


def plan_turns(
    schedule: Schedule, rank: int, ranks: int, count: int, chunks: int = 1
) -> list[Turn]:
    """Return the passes of `rank` for `count` micro-batches, in order.

    Each of `ranks` ranks has `chunks` stages. A single stage runs each micro-batch forward and then
    backward.
    """
    if schedule == "interleaved":
        return _interleave(rank, ranks, count, chunks)
    assert chunks == 1, "one stage a rank"
    ahead = count if schedule == "GPipe" else ranks - 1 - rank
    forward = [Turn(True, number) for number in range(count)]
    return _alternate(forward, [Turn(False, number) for number in range(count)], ahead)


def _interleave(rank: int, ranks: int, count: int, chunks: int) -> list[Turn]:
    """Return the interleaved 1F1B order.

    Groups of as many micro-batches as there are ranks go through the first chunk, then through the
    second, and so on. The last group may be incomplete: the order is made as if it were complete,
    so that no two ranks wait for each other, and the missing micro-batches are left out.
    """
    groups = [range(n, n + ranks) for n in range(0, count, ranks)]
    forward = [Turn(True, n, chunk) for group in groups for chunk in range(chunks) for n in group]
    backward = [
        Turn(False, n, chunk)
        for group in groups
        for chunk in reversed(range(chunks))
        for n in group
    ]
    order = _alternate(forward, backward, 2 * (ranks - 1 - rank) + (chunks - 1) * ranks)
    return [turn for turn in order if turn.number < count]


def _alternate(forward: list[Turn], backward: list[Turn], ahead: int) -> list[Turn]:
    """Return the first `ahead` forward passes, then one forward and one backward pass in turn."""
    order = forward[:ahead]
    for number, turn in enumerate(backward):
        order += [*forward[ahead + number : ahead + number + 1], turn]
    return order


def find_held_at_once(order: list[Turn]) -> list[Turn]:
    """Return the forward passes of `order` that wait for their backward passes at the peak.

    The peak is the time when the most passes wait.
    """
    held: list[Turn] = []
    most: list[Turn] = []
    for turn in order:
        if turn.forward:
            held.append(turn)
            most = max(most, list(held), key=len)
        else:
            held.remove(Turn(True, turn.number, turn.chunk))
    return most


def compute_idle_share(ranks: int, count: int, chunks: int = 1) -> float:
    """Return the fraction of a step in which a rank waits (the bubble).

    All stages are assumed to take equally long. The bubble is (P - 1) / (chunks M) of the computing
    time, for P ranks and M micro-batches. GPipe and 1F1B have the same bubble.
    """
    return (ranks - 1) / (chunks * count + ranks - 1)
