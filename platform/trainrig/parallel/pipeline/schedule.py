"""In what order a stage of a pipeline takes micro-batches forward and backward.

GPipe: Huang et al. 2019, arXiv:1811.06965. 1F1B: Narayanan et al. 2021, arXiv:2104.04473, section
2.2.1. In both, each stage takes micro-batches backward in the order of their numbers, as one
process does, so gradients are added up in one order.
"""

from typing import Literal, NamedTuple

Schedule = Literal["1F1B", "GPipe"]


class Turn(NamedTuple):
    """What a stage does next."""

    forward: bool  # else backward
    number: int  # of the micro-batch, among those of the replica in this step


def turns(schedule: Schedule, stage: int, stages: int, count: int) -> list[Turn]:
    """What `stage` of `stages` does with `count` micro-batches; a single stage takes each forward
    and then backward."""
    ahead = count if schedule == "GPipe" else min(count, stages - 1 - stage)
    order = [Turn(True, number) for number in range(ahead)]
    for number in range(count):
        if ahead + number < count:
            order.append(Turn(True, ahead + number))
        order.append(Turn(False, number))
    return order


def idle_share(stages: int, count: int) -> float:
    """The share of a step in which a stage waits, if all take as long: the bubble, the same in both
    schedules."""
    return (stages - 1) / (count + stages - 1)
