"""The batches of a training run: what is learnt from at each step, whoever asks, in any order.

Shapes: B sequences of a micro-batch, T positions.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, Self

from pydantic import model_validator

from trainrig.config import Field, Settings
from trainrig.tokens.permutation import Integers

IGNORE = -100  # a target that is not trained on


@dataclass(frozen=True)
class MicroBatch:
    """What one forward and backward pass sees; the unit that no number of workers changes."""

    ids: Integers  # [B, T]
    targets: Integers  # [B, T], IGNORE where not trained on
    samples: Integers  # [B] global sample numbers, the keys of RNG and trace


class Batches(Protocol):
    """Where a training loop has its batches from."""

    def at(self, step: int) -> tuple[MicroBatch, ...]:
        """The whole global batch of `step`: a pure function, the same for every worker count."""
        ...


def local(batch: Sequence[MicroBatch], rank: int, world: int) -> list[tuple[MicroBatch, bool]]:
    """The micro-batches of worker `rank` out of `world`, each with whether it is real.

    Workers take neighbouring micro-batches. All have the same number of rounds, so that all join
    every collective; one that lacks a micro-batch repeats another, whose result it drops.
    """
    if not 0 <= rank < world:
        raise ValueError(f"no rank {rank} among {world} workers")
    begin, end = len(batch) * rank // world, len(batch) * (rank + 1) // world
    rounds = math.ceil(len(batch) / world)
    real = [(micro_batch, True) for micro_batch in batch[begin:end]]
    return real + [(batch[0], False)] * (rounds - len(real))


class BatchSizes(Settings):
    """How many sequences make up the batch of each step, how long, and in what order."""

    sequence_length: int = Field(ge=1)  # T, tokens
    global_batch: int = Field(ge=1)  # sequences a step, over all workers
    micro_batch: int = Field(ge=1)  # sequences of one forward pass
    seed: int = 0  # of the order

    @model_validator(mode="after")
    def _divides(self) -> Self:
        rest = self.global_batch % self.micro_batch
        if rest:
            above = self.global_batch + self.micro_batch - rest
            raise ValueError(
                f"global_batch ({self.global_batch} sequences) is not a multiple of micro_batch "
                f"({self.micro_batch}); the nearest above: {above}"
            )
        return self
