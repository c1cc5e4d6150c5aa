"""Held-out loss by source, measured during a training run.

The rows are the same at every measurement, so two values differ by the model alone. Each
micro-batch holds rows of one source and is computed the same way on any rank; the sums of
micro-batches are added in the order of their indices. So the losses are bit-identical at any number
of workers.

Shapes: B rows of a micro-batch, T positions, M micro-batches, P pieces of documents in B rows.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator

from trainrig import storage
from trainrig.config import Field, Settings
from trainrig.objectives.objective_interface import DeviceBatch, Objective
from trainrig.tokens.batches import (
    IGNORE,
    WEIGHTS,
    Corruption,
    MicroBatch,
    MicroBatchSlot,
    MixedCorruption,
    assign_micro_batches,
    build_token_arrays,
)
from trainrig.tokens.permutation import Integers
from trainrig.tokens.rows.whole_rows import WholeRows
from trainrig.tokens.shards.block_cache import BlockCache
from trainrig.tokens.shards.token_shards import HELD_OUT, TokenShards, check_rows
from trainrig.train.sinks import Sink

if TYPE_CHECKING:
    import torch

    from trainrig.parallel.mesh import WorkerMesh
    from trainrig.train.loss_table import Loss


# torch is imported where it is needed: `check` opens the held-out data without it.

log = logging.getLogger(__name__)


class HeldOutSettings(Settings):
    """Frequency and size of the held-out loss measurements."""

    # Steps between measurements. The last step is always measured.
    every: int = Field(default=100, ge=1)
    # Sequences of each source to measure on; 0 turns the held-out loss off. A row costs a third of
    # a training row, as it has no backward pass.
    rows: int = Field(default=16, ge=0)

    def due(self, step: int, last: int) -> bool:
        """Return whether the loss is measured after update number `step` of `last`."""
        return self.rows > 0 and step > 0 and (step % self.every == 0 or step == last)


class Metrics(Settings):
    """Frequency of the costlier metrics. They do not change the trained weights."""

    # Steps between measurements of the gradient noise scale, and on CPUs also of the slowest rank;
    # 0 means never.
    every: int = Field(default=10, ge=0)
    # Steps between the costliest measurements; 0 means never. They are gradient, weight and update
    # norms by layer and by kind, which need a copy of each rank's slices of the weights during the
    # update; activations, which need a forward pass over one micro-batch; and, on accelerators, the
    # time shares of a step and the slowest rank, which synchronise with the device.
    layers_every: int = Field(default=100, ge=0)
    # Services that receive the metrics in addition to `metrics.jsonl` and TensorBoard.
    sinks: tuple[Sink, ...] = ()

    def due(self, step: int) -> bool:
        """Return whether update number `step`, counted from 1, is measured."""
        return self.every > 0 and step % self.every == 0

    def layers_due(self, step: int) -> bool:
        """Return whether update number `step`, counted from 1, is measured by layer."""
        return self.layers_every > 0 and step % self.layers_every == 0


class StepProfile(Settings):
    """Steps to profile, with each operation and allocation. Profiled steps take longer."""

    # First and last update to record, counted from 1. The first updates of an attempt also compile
    # and allocate memory.
    steps: tuple[int, int]
    # Ranks that record; numbers that the attempt does not have are ignored. None means all ranks.
    ranks: tuple[int, ...] | None = None
    # Whether the trace also records the Python lines that each operation came from. This makes
    # larger files.
    stacks: bool = False

    @model_validator(mode="after")
    def _check_step_range(self) -> Self:
        first, last = self.steps
        if not 1 <= first <= last:
            raise ValueError(
                f"steps has [{first}, {last}], which names no update; give the first and the last "
                "to record, counted from 1, as in [11, 13]"
            )
        return self


@dataclass(frozen=True)
class HeldOutSets:
    """Held-out rows of a run, in micro-batches of one source each."""

    sources: tuple[str, ...]
    # Sorted by source, in the order of `sources`; `MicroBatch.sources` holds indices into it.
    batches: tuple[MicroBatch, ...]
    # Held-out rows of earlier data, to measure forgetting: not part of the total loss.
    remembered: "HeldOutSets | None" = None

    def count_micro_batches(self) -> int:
        """Return the number of micro-batches of all sources together."""
        return len(self.batches)

    def micro_batch(self, index: int) -> MicroBatch:
        """Return micro-batch number `index`."""
        return self.batches[index]

    def corrupt(self, corruption: Corruption) -> "HeldOutSets":
        """Return the same rows, also the remembered ones, corrupted identically at each call.

        A mixture of corruptions is applied row by row rather than by micro-batch, so that even a
        few rows contain every kind.
        """
        if isinstance(corruption, MixedCorruption):
            corruption = corruption.choose_by_sample()
        batches = tuple(corruption.apply(micro, 0) for micro in self.batches)
        remembered = self.remembered.corrupt(corruption) if self.remembered else None
        return HeldOutSets(self.sources, batches, remembered)


def hold_nothing_out() -> HeldOutSets | None:
    """Return None: the `TrainingJob.make_held_out` of runs that measure no held-out loss."""
    return None


def evaluate(
    objective: Objective,
    model: "torch.nn.Module",
    sets: HeldOutSets,
    agreed_to_stop: Callable[[], bool],
    mesh: "WorkerMesh",
    others: "Mapping[str, torch.nn.Module] | None" = None,
) -> "Loss | None":
    """Compute the loss of `model` on `sets`, or return None if all ranks agreed to stop.

    Collective: every rank must call it, with the same `sets`. `agreed_to_stop` is called before
    each micro-batch, and returns the same on all ranks. `others` are models that compute inputs of
    the objective, by name.
    """
    import torch

    from trainrig.parallel.axes.pipeline_passes import StagePasses
    from trainrig.parallel.axes.row_split import find_row_split
    from trainrig.parallel.mesh import find_local_device
    from trainrig.parallel.sharding.fsdp import reshard
    from trainrig.train.loss_table import LossTable, measure_statistics

    count = sets.count_micro_batches()
    device = find_local_device()
    split = find_row_split(mesh)
    passes = StagePasses(model, mesh)
    table = LossTable(objective, sets.sources, count, device, double=True, split=split)
    table.expect(passes.auxiliary())
    slots = assign_micro_batches(count, mesh.data_size, mesh.data_rank, mesh.data_size)

    def batches() -> "Iterator[tuple[MicroBatchSlot, DeviceBatch]]":
        return (
            (slot, split.take_part(DeviceBatch.copy(sets.micro_batch(slot.index), device, others)))
            for slot in slots
        )

    try:
        statistics = measure_statistics(objective, model, batches(), count, agreed_to_stop, split)
        if statistics is None:
            return None
        with torch.no_grad():
            for slot, batch in batches():
                if agreed_to_stop():
                    return None
                computed = passes.run_forward(objective, batch, statistics)
                if computed is not None:
                    table.fill(slot, computed, batch.sources_B)
        table.expect_diagnostics(passes.share_names(table.diagnostics))
    finally:
        for held in (model, *(others or {}).values()):
            reshard(held)
    return table.reduce()


@dataclass(frozen=True)
class RowSizes:
    """Sizes of the rows that held-out text is cut into."""

    rows: int  # maximum for each source
    length: int  # T
    micro_batch: int  # B
    by_document: bool  # True if attention is limited to the token's document


def open_held_out(shards: TokenShards, sizes: RowSizes) -> HeldOutSets:
    """Cut rows from each source of `shards`, at equal distances, from its first token on.

    A source consists of windows of one row each. Of 100 windows, 16 rows take windows 0, 6, 12, …,
    93. A source with fewer than two tokens is left out, as its first token is no target. So the
    result may have no source at all.
    """
    sources = tuple(source for source in shards.sources if shards.tokens(source) > 1)
    batches: list[MicroBatch] = []
    for number, source in enumerate(sources):
        windows = -(-(shards.tokens(source) - 1) // sizes.length)  # the last one may be shorter
        chosen = np.unique(np.arange(sizes.rows, dtype=np.int64) * windows // sizes.rows)
        for first_chosen in range(0, len(chosen), sizes.micro_batch):
            samples = chosen[first_chosen : first_chosen + sizes.micro_batch]
            batches.append(_read_micro_batch(shards, source, number, samples, sizes))
    return HeldOutSets(sources, tuple(batches))


def _read_micro_batch(
    shards: TokenShards, source: str, number: int, samples: Integers, sizes: RowSizes
) -> MicroBatch:
    """Read the windows `samples` [B] of `source`, which has the source `number`, as a micro-batch.

    Window n holds the T tokens from n * T on. Consecutive windows are read from the shards at once.
    """
    shape = (len(samples), sizes.length)
    ids_BT = np.zeros(shape, dtype=np.int64)
    targets_BT = np.full(shape, IGNORE, dtype=np.int64)
    begins_BT = np.zeros(shape, dtype=np.int64)  # the position where a document begins, else 0
    pieces_P3: list[NDArray[np.int64]] = []  # (row, position in it, document's number)
    for rows in np.split(np.arange(len(samples)), np.flatnonzero(np.diff(samples) != 1) + 1):
        first = int(rows[0])
        past = int(rows[-1]) + 1
        start = int(samples[first]) * sizes.length
        length = min((past - first) * sizes.length, shards.tokens(source) - 1 - start)
        held = shards.read_window(source, start, length + 1)
        ids_BT[first:past].reshape(-1)[:length] = held[:-1]
        targets_BT[first:past].reshape(-1)[:length] = held[1:]
        documents = shards.find_boundaries(source, start, length) - start
        begins = np.union1d(np.arange(0, length, sizes.length), documents)
        of_rows = first + begins // sizes.length
        positions = begins % sizes.length
        numbers = shards.find_document_numbers(source, begins + start)
        pieces_P3.append(np.stack([of_rows, positions, numbers], axis=1))
        begins_BT[of_rows, positions] = positions
    positions_BT = np.arange(sizes.length) - np.maximum.accumulate(begins_BT, axis=1)
    return MicroBatch(
        build_token_arrays(ids_BT, targets_BT, positions_BT if sizes.by_document else None),
        samples=samples,
        sources=np.full(len(samples), number, dtype=np.int64),
        pieces=np.concatenate(pieces_P3),
    )


def open_held_out_conversations(
    folder: str,
    sequence_length: int,
    padding: int,
    rows: int | None = None,
    cache: BlockCache | None = None,
) -> HeldOutSets:
    """Open the held-out conversations of `folder`, one per row, source by source.

    `rows` limits the number of conversations of each source, which are taken at equal distances,
    from its first on; None means all. Raises DataError if a conversation is longer than
    `sequence_length` + 1 tokens.
    """
    shards = TokenShards.open(storage.join(folder, HELD_OUT), cache)
    check_rows(shards, "conversations")
    layout = WholeRows(shards, sequence_length, padding, together=False)
    batches = []
    for number, source in enumerate(shards.sources):
        count = layout.windows(source)
        wanted = min(rows or count, count)
        chosen = np.unique(np.arange(wanted) * count // wanted)
        batches += [
            _read_conversation(layout, source, number, window) for window in chosen.tolist()
        ]
    return HeldOutSets(shards.sources, tuple(batches))


def _read_conversation(layout: WholeRows, source: str, number: int, window: int) -> MicroBatch:
    """Read one conversation as a micro-batch of one row, cut to the conversation's length."""
    ids, targets, weights = np.empty((3, 1, layout.length), dtype=np.int64)
    pieces = layout.read(source, window, 1, ids[0], targets[0])
    layout.read_target_weights(source, window, weights[0])
    width = int(np.flatnonzero(targets[0] != IGNORE)[-1]) + 1
    arrays = build_token_arrays(ids[:, :width], targets[:, :width]) | {WEIGHTS: weights[:, :width]}
    return MicroBatch(
        {name: np.ascontiguousarray(array) for name, array in arrays.items()},
        samples=np.array([window]),
        sources=np.array([number]),
        pieces=np.insert(pieces, 0, 0, axis=1),  # all pieces are in row 0
    )
