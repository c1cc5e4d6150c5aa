"""The batches of a training run: what is learnt from at each step, whoever asks, in any order.

Shapes: B sequences of a micro-batch, T positions, P pieces of documents in all rows of it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

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
    sources: Integers  # [B] number of each row's source among the `sources` of the batches
    pieces: Integers  # [P, 3] (row, place in it, number of the document in its source), ascending
    # [B, T] place of each id in its own piece; None: attention crosses documents.
    positions: Integers | None = None


class Batches(Protocol):
    """Where a training loop has its batches from: pure functions of the step.

    Nothing but `deal` knows how many workers there are.
    """

    def micro_batches(self, step: int) -> int:
        """How many micro-batches make up the global batch of `step` (from 0)."""
        ...

    def targets(self, step: int) -> int:
        """Targets of the whole global batch of `step`, without reading it: what losses are
        divided by."""
        ...

    def micro_batch(self, step: int, index: int) -> MicroBatch:
        """Micro-batch `index` of `step`."""
        ...

    def data_before(self, step: int) -> Mapping[str, Any]:
        """All that the batches before `step` depend on, by name, as JSON has it.

        Two runs that agree in it have trained on the same samples up to `step`.
        """
        ...


def deal(count: int, rank: int, world: int) -> list[tuple[int, bool]]:
    """Which of `count` micro-batches worker `rank` out of `world` takes, each with whether it is
    real.

    Workers take neighbouring micro-batches. All have the same number of rounds, so that all join
    every collective; one that lacks a micro-batch repeats another, whose result it drops.
    """
    if not 0 <= rank < world:
        raise ValueError(f"no rank {rank} among {world} workers")
    begin, end = count * rank // world, count * (rank + 1) // world
    rounds = math.ceil(count / world)
    real = [(index, True) for index in range(begin, end)]
    return real + [(0, False)] * (rounds - len(real))


@dataclass(frozen=True)
class Share:
    """What one worker has to do of one step."""

    dealt: Sequence[tuple[MicroBatch, bool]]  # each with whether it is real
    targets: int  # in the whole global batch: what every loss is divided by


def read_share(batches: Batches, rank: int, world: int, step: int) -> Share:
    """The share that worker `rank` out of `world` has in `step`; no other's is read."""
    dealt = deal(batches.micro_batches(step), rank, world)
    return Share(
        [(batches.micro_batch(step, index), real) for index, real in dealt], batches.targets(step)
    )


class BatchSizes(Settings):
    """How many sequences make up the batch of each step, how long, and in what order."""

    sequence_length: int = Field(ge=1)  # T, tokens
    global_batch: int = Field(ge=1)  # sequences a step, over all workers
    micro_batch: int = Field(ge=1)  # sequences of one forward pass
    seed: int = 0  # of the order

    @model_validator(mode="after")
    def _divides(self) -> Self:
        check_divides(self.global_batch, self.micro_batch)
        return self


def check_divides(global_batch: int, micro_batch: int) -> None:
    """Raise ValueError unless a global batch is a whole number of micro-batches."""
    rest = global_batch % micro_batch
    if rest:
        above = global_batch + micro_batch - rest
        raise ValueError(
            f"global_batch ({global_batch} sequences) is not a multiple of micro_batch "
            f"({micro_batch}); the nearest above: {above}"
        )
