"""In what order a rank of a pipeline takes micro-batches forward and backward.

GPipe: Huang et al. 2019, arXiv:1811.06965. 1F1B, and interleaved 1F1B, in which a rank has several
stages: Narayanan et al. 2021, arXiv:2104.04473, sections 2.2.1 and 2.2.2. In all of them each stage
takes micro-batches backward in the order of their numbers, as one process does, so gradients are
added up in one order.

With chunks, stages go round the ranks: chunk c of rank p of P is stage c P + p.
"""

from typing import Literal, NamedTuple

Schedule = Literal["1F1B", "GPipe", "interleaved"]


class Turn(NamedTuple):
    """What a rank does next."""

    forward: bool  # else backward
    number: int  # of the micro-batch, among those of the replica in this step
    chunk: int = 0  # which of the rank's stages


def plan_turns(
    schedule: Schedule, rank: int, ranks: int, count: int, chunks: int = 1
) -> list[Turn]:
    """What `rank` of `ranks`, with `chunks` stages each, does with `count` micro-batches; a single
    stage takes each forward and then backward."""
    if schedule == "interleaved":
        return _interleave(rank, ranks, count, chunks)
    assert chunks == 1, "one stage a rank"
    ahead = count if schedule == "GPipe" else ranks - 1 - rank
    forward = [Turn(True, number) for number in range(count)]
    return _alternate(forward, [Turn(False, number) for number in range(count)], ahead)


def _interleave(rank: int, ranks: int, count: int, chunks: int) -> list[Turn]:
    """As many micro-batches as there are ranks go through the first chunk, then through the second,
    and so on. The last of them may be fewer: what is played is as if they were not, so no two ranks
    wait for each other, and those that are not there are left out."""
    groups = [range(n, n + ranks) for n in range(0, count, ranks)]
    forward = [Turn(True, n, chunk) for each in groups for chunk in range(chunks) for n in each]
    backward = [
        Turn(False, n, chunk) for each in groups for chunk in reversed(range(chunks)) for n in each
    ]
    order = _alternate(forward, backward, 2 * (ranks - 1 - rank) + (chunks - 1) * ranks)
    return [turn for turn in order if turn.number < count]


def _alternate(forward: list[Turn], backward: list[Turn], ahead: int) -> list[Turn]:
    """The first `ahead` forward passes, then one forward and one backward in turn."""
    order = forward[:ahead]
    for number, turn in enumerate(backward):
        order += [*forward[ahead + number : ahead + number + 1], turn]
    return order


def find_held_at_once(order: list[Turn]) -> list[Turn]:
    """Of those passes of `order` between which something is kept of them, the most that are so at
    one time: forward passes whose backward passes are still to come."""
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
    """The share of a step in which a rank waits, if all stages take as long: the bubble, of
    (P - 1) / (chunks M) of the time of computing. GPipe and 1F1B have the same."""
    return (ranks - 1) / (chunks * count + ranks - 1)
