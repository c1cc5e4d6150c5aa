"""The loss on text that is not trained on, by source, while a run is on its way.

The rows are the same each time, so two figures differ by the model alone. A micro-batch is of one
source and is computed the same way whoever computes it; what each comes to is added in the order of
their numbers. So the losses have the same bits at any number of workers.

Shapes: B rows of a micro-batch, T positions, M micro-batches, P pieces of documents in B rows.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from trainrig.config import Field, Settings
from trainrig.objectives.contract import DeviceBatch, Objective
from trainrig.tokens.batches import IGNORE, MicroBatch, assign_micro_batches, token_arrays
from trainrig.tokens.permutation import Integers
from trainrig.tokens.shards.token_shards import TokenShards

# torch is imported where it is needed: `check` opens what is held out, and does without.
if TYPE_CHECKING:
    import torch

    from trainrig.train.loss_table import Loss

log = logging.getLogger(__name__)


class HeldOutSettings(Settings):
    """How often the held-out loss is measured, and on how much."""

    # Steps between measurements; the last step always has one.
    every: int = Field(default=100, ge=1)
    # Sequences of each source to measure on; 0: no held-out loss. A row costs a third of one in
    # training.
    rows: int = Field(default=16, ge=0)

    def due(self, step: int, last: int) -> bool:
        """Whether it is to be measured after update number `step` of `last`."""
        return self.rows > 0 and step > 0 and (step % self.every == 0 or step == last)


@dataclass(frozen=True)
class HeldOutSets:
    """What is held out of training, in micro-batches of one source each."""

    sources: tuple[str, ...]
    batches: tuple[MicroBatch, ...]  # in the order of `sources`, which their `sources` count by

    def micro_batches(self) -> int:
        """How many there are of all sources together."""
        return len(self.batches)

    def micro_batch(self, index: int) -> MicroBatch:
        """Micro-batch `index`."""
        return self.batches[index]

    def targets(self, source: str) -> int:
        """Targets of all rows of `source`."""
        return sum(int((m.targets != IGNORE).sum()) for _, m in self._of(source))

    def _of(self, source: str) -> Iterator[tuple[int, MicroBatch]]:
        number = self.sources.index(source)
        return ((i, m) for i, m in enumerate(self.batches) if m.sources[0] == number)


def nothing_held_out() -> HeldOutSets | None:
    """No sets: for runs that measure no held-out loss."""
    return None


def evaluate(
    objective: Objective,
    model: "torch.nn.Module",
    sets: HeldOutSets,
    agreed_to_stop: Callable[[], bool],
) -> "Loss | None":
    """The loss of `model` on `sets`; every rank calls it.

    `agreed_to_stop` is called before each micro-batch and answers all ranks alike: None is returned
    as soon as it says so.
    """
    import torch
    import torch.distributed as dist

    from trainrig.parallel.mesh import local_device
    from trainrig.train.loss_table import LossTable

    count, device = sets.micro_batches(), local_device()
    table = LossTable(objective, sets.sources, count, device, double=True)
    world = dist.get_world_size()
    try:
        with torch.no_grad():
            for slot in assign_micro_batches(count, world, dist.get_rank(), world):
                if agreed_to_stop():
                    return None
                batch = DeviceBatch.copy(sets.micro_batch(slot.index), device)
                table.fill(slot, objective.compute(model, batch, {}), batch.sources_B)
    finally:
        _reshard(model)
    return table.reduce()


def _reshard(model: "torch.nn.Module") -> None:
    """Let go of whole parameters: FSDP keeps some after a forward pass, for a backward pass that
    does not come here. Until then they, not the shards, are the model's parameters."""
    from torch.distributed.fsdp import FSDPModule

    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


@dataclass(frozen=True)
class RowSizes:
    """How held-out text is cut."""

    rows: int  # of each source, at most
    length: int  # T
    micro_batch: int  # B
    by_document: bool  # a token looks back on its own document alone


def open_held_out(shards: TokenShards, sizes: RowSizes) -> HeldOutSets:
    """Rows spread evenly over each source of `shards`, from its first to its last.

    A source with one token is left out: the first is no target. So there may be no source at all.
    """
    sources = tuple(source for source in shards.sources if shards.tokens(source) > 1)
    batches: list[MicroBatch] = []
    for number, source in enumerate(sources):
        windows = -(-(shards.tokens(source) - 1) // sizes.length)  # the last may be part of one
        chosen = np.unique(np.arange(sizes.rows, dtype=np.int64) * windows // sizes.rows)
        for at in range(0, len(chosen), sizes.micro_batch):
            samples = chosen[at : at + sizes.micro_batch]
            batches.append(_micro_batch(shards, source, number, samples, sizes))
    return HeldOutSets(sources, tuple(batches))


def _micro_batch(
    shards: TokenShards, source: str, number: int, samples: Integers, sizes: RowSizes
) -> MicroBatch:
    """The windows `samples` [B] of `source`, each of its T tokens after the one before it.

    Windows that follow one another are read at once.
    """
    shape = (len(samples), sizes.length)
    ids_BT = np.zeros(shape, dtype=np.int64)
    targets_BT = np.full(shape, IGNORE, dtype=np.int64)
    places_BT = np.zeros(shape, dtype=np.int64)
    pieces_P3: list[NDArray[np.int64]] = []
    for rows in np.split(np.arange(len(samples)), np.flatnonzero(np.diff(samples) != 1) + 1):
        first, past = int(rows[0]), int(rows[-1]) + 1
        start = int(samples[first]) * sizes.length
        length = min((past - first) * sizes.length, shards.tokens(source) - 1 - start)
        held = shards.window(source, start, length + 1)
        ids_BT[first:past].reshape(-1)[:length] = held[:-1]
        targets_BT[first:past].reshape(-1)[:length] = held[1:]
        documents = shards.boundaries(source, start, length) - start
        begins = np.union1d(np.arange(0, length, sizes.length), documents)
        of_rows, places = first + begins // sizes.length, begins % sizes.length
        numbers = shards.document_numbers(source, begins + start)
        pieces_P3.append(np.stack([of_rows, places, numbers], axis=1))
        places_BT[of_rows, places] = places
    positions_BT = np.arange(sizes.length) - np.maximum.accumulate(places_BT, axis=1)
    return MicroBatch(
        token_arrays(ids_BT, targets_BT, positions_BT if sizes.by_document else None),
        samples=samples,
        sources=np.full(len(samples), number, dtype=np.int64),
        pieces=np.concatenate(pieces_P3),
    )
