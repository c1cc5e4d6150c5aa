"""Batches that are made while a run goes on, each from the weights that the step before left.

A batch is made by all ranks, one micro-batch after another by whose turn it is, and stored whole
before anything is trained on it. What of it is sampled may come from elsewhere, and from weights of
before (rollout_pool/asking.py). From then on it is a batch like any other: read from the run
folder, by whichever ranks there are. A run that resumes reads what is stored and makes nothing
again; so what is random or costly about a batch happens once.

    online/batch_00000003-c0ffee01/attempt-2/00001.npz  a micro-batch, by the attempt that made it
    online/batch_00000003-c0ffee01/attempt-2/left.npz   what the next one goes on with, if it does
    online/batch_00000003-c0ffee01/batch.json           sums of all; created once, at the end

The first to create the record has made the batch; an attempt that outlives its successor comes too
late. The second part of the name is of the data that the run went past before: after a roll-back
that leaves data out, a batch made from the weights of before is not met again.
"""

import functools
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from trainrig import storage
from trainrig.errors import DataError
from trainrig.manifest import digest
from trainrig.objectives.contract import Carrying, Objective
from trainrig.parallel.fsdp import keep_gathered, reshard
from trainrig.parallel.mesh import WorkerMesh
from trainrig.tokens.batch_makers import NO_ARRAYS, Arrays, BatchMaker, RolloutMaker
from trainrig.tokens.batches import MicroBatch, MicroBatchSlot, assign_micro_batches
from trainrig.train.rollout_pool.asking import RolloutsAhead
from trainrig.train.run.run_folder import RunFolder, TrainingAttempt
from trainrig.train.run.stored_batches import FOLDER, LEFT, RECORD, StoredBatch, pack_arrays
from trainrig.train.state import TrainState

# Of what is carried from batch to batch: waves that the run has drawn, where batches take several.
WAVES_DRAWN = "waves_drawn"


class OnlineBatches:
    """The batches of a run whose `maker` makes them. All ranks call `prepare` before each step."""

    def __init__(
        self,
        maker: BatchMaker,
        folder: RunFolder,
        attempt: TrainingAttempt,
        virtual: int | None,
        *,
        mesh: WorkerMesh,
        gather_once: bool = True,
        actors: bool = False,
    ) -> None:
        """Collective. `virtual`: virtual workers at most; None: as many as ranks. `gather_once`: as
        `shard` was told, if it was, over `mesh`. `actors`: there are some that sample."""
        self.maker, self.sources = maker, maker.sources
        self._folder, self._attempt, self._virtual = folder, attempt, virtual
        self._gather_once, self._mesh = gather_once, mesh
        self._group = dist.new_group(backend="gloo")
        self._stored: StoredBatch | None = None
        self._ahead: RolloutsAhead | None = None
        if isinstance(maker, RolloutMaker) and (actors or maker.lag or maker.draws_waves):
            self._ahead = RolloutsAhead(maker, folder, attempt, self._group, actors)

    def prepare(self, state: TrainState, alive: Callable[[], None] = lambda: None) -> None:
        """See that the batch of the next step of `state` is stored; calls `alive` while it waits
        for actors. Collective.

        Raises DataError if it was begun to be trained on and is gone, and where what is left to be
        sampled can't be any more.
        """
        number, update = divmod(state.data_step, self.maker.updates)
        if self._stored and self._stored.number == number and update:
            return
        folder = self._name_folder(number, state)
        stored = self._broadcast(StoredBatch.read(folder) if dist.get_rank() == 0 else None)
        # Waves are asked for when what the one before gave is known.
        at_once = self._ahead if self._ahead and not self._ahead.maker.draws_waves else None
        if at_once and not update and (stored is None or at_once.lag):
            is_stored = functools.partial(self._is_stored, state)
            at_once.ask(state, number, is_stored, self._assign_slots, self._gather_once)
        if stored is None:
            if update:
                raise DataError(
                    f"{folder}: gone, and the run is {update} of {self.maker.updates} updates into "
                    "it; restore that folder, or remove the checkpoints after it"
                )
            if at_once:
                at_once.check_asked(number)
            stored = self._make(state, number, folder, alive)
        if at_once:
            at_once.forget(number)
        self._stored = stored

    def carry(
        self, state: TrainState, objective: Objective, diagnostics: Mapping[str, float]
    ) -> None:
        """Have what `objective` carries, and the number of the next wave, go on if the update that
        `state` has just made was the last of its batch."""
        if state.data_step % self.maker.updates:
            return
        batch = self._find_batch(state.data_step - 1)
        if isinstance(objective, Carrying):
            carried = objective.carry(state.carried, diagnostics, batch.denominators)
            state.carried = {**state.carried, **carried}
        if self._ahead and self._ahead.maker.draws_waves:
            state.carried = {**state.carried, WAVES_DRAWN: _find_next_wave(state) + batch.waves}

    def micro_batches(self, step: int) -> int:
        """See tokens.batches.Batches."""
        return len(self._find_batch(step).files)

    def denominators(self, step: int) -> Mapping[str, int]:
        """See tokens.batches.Batches."""
        return self._find_batch(step).denominators

    def micro_batch(self, step: int, index: int) -> MicroBatch:
        """See tokens.batches.Batches."""
        return self._find_batch(step).read_micro_batch(index)

    def data_before(self, step: int) -> Mapping[str, Any]:
        """See tokens.batches.Batches."""
        return self.maker.data_before(step)

    def _find_batch(self, step: int) -> StoredBatch:
        number = step // self.maker.updates
        assert self._stored and self._stored.number == number, f"step {step} was not prepared"
        return self._stored

    def _name_folder(self, number: int, state: TrainState) -> str:
        first = number * self.maker.updates
        past = [[begin, min(end, first)] for begin, end in state.skipped if begin < first]
        key = digest([self.maker.identity(), past])[:8]
        return storage.join(self._folder.path, FOLDER, f"batch_{number:08d}-{key}")

    def _is_stored(self, state: TrainState, number: int) -> bool:
        return storage.exists(storage.join(self._name_folder(number, state), RECORD))

    def _assign_slots(self, count: int) -> list[MicroBatchSlot]:
        mesh = self._mesh
        virtual = min(self._virtual or mesh.data_size, count)
        return assign_micro_batches(count, virtual, mesh.data_rank, mesh.data_size)

    def _make(
        self, state: TrainState, number: int, folder: str, alive: Callable[[], None]
    ) -> StoredBatch:
        count = self.maker.micro_batches(number)
        mine: dict[int, tuple[Mapping[str, str], Mapping[str, int]]] = {}
        self.maker.carried = state.carried
        slots = self._assign_slots(count)
        make, waves, left = self._begin(state, number, slots, alive)
        try:
            with torch.no_grad(), keep_gathered(state.model, self._gather_once):
                for slot in slots:
                    micro = make(slot.index)
                    if slot.real and self._mesh.is_reporter:
                        denominators = dict(self.maker.denominators(micro))
                        file = self._write(_collect_arrays(micro), folder, f"{slot.index:05d}")
                        mine[slot.index] = file, denominators
        finally:
            # Gathered, for a backward pass that does not come.
            for model in (state.model, *state.others.values()):
                reshard(model)
        parts: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(parts, mine, group=self._group)
        if dist.get_rank():
            return self._broadcast_made(None)
        made = {index: each for part in parts for index, each in part.items()}
        totals: Counter[str] = Counter()
        for _, denominators in made.values():
            totals.update(denominators)
        record = {
            "number": number,
            "step": state.step,
            "updates": self.maker.updates,
            "attempt": self._attempt.number,
            "sources": list(self.sources),
            "files": [made[index][0] for index in range(count)],
            "denominators": dict(sorted(totals.items())),
            "waves": waves,
        }
        if left:
            record["left"] = self._write(left, folder, LEFT)
        # Not created: another attempt was the first, and what it stored is the batch.
        storage.create(storage.join(folder, RECORD), json.dumps(record, indent=1).encode())
        return self._broadcast_made(StoredBatch.read(folder))

    def _begin(
        self,
        state: TrainState,
        number: int,
        slots: Sequence[MicroBatchSlot],
        alive: Callable[[], None],
    ) -> tuple[Callable[[int], MicroBatch], int, Arrays]:
        """What makes the micro-batches of `slots`, once all that it is going to need is there, how
        many waves that took, and what is left for the next batch."""
        models, ahead = (state.model, state.others), self._ahead
        if ahead is None:
            return functools.partial(self.maker.make, *models, number), 1, NO_ARRAYS
        maker, waves, left = ahead.maker, 1, NO_ARRAYS
        sampled: Mapping[int, Arrays]
        if maker.draws_waves:
            drawn = maker.begin(number, self._read_left_before(number, state))
            first, gather = _find_next_wave(state), self._gather_once
            units, waves = ahead.draw_waves(state, drawn, first, self._assign_slots, gather, alive)
            sampled, left = dict(enumerate(units)), drawn.list_left()
        else:
            sampled = ahead.wait(number, [each.index for each in slots], alive)

        def complete(index: int) -> MicroBatch:
            return maker.complete(*models, number, index, sampled[index])

        return complete, waves, left

    def _read_left_before(self, number: int, state: TrainState) -> Arrays:
        """What the batch before batch `number` left for it. Raises DataError if that is gone."""
        if not (number and self._ahead and self._ahead.maker.carries_over):
            return NO_ARRAYS
        folder = self._name_folder(number - 1, state)
        before = self._broadcast(StoredBatch.read(folder) if dist.get_rank() == 0 else None)
        if before is None:
            raise DataError(
                f"{folder}: gone, and with it the completions that batch {number} goes on with; "
                "restore that folder, or remove the checkpoints after it"
            )
        return before.read_left()

    def _write(self, arrays: Arrays, folder: str, file: str) -> dict[str, str]:
        name, data = f"attempt-{self._attempt.number}/{file}.npz", pack_arrays(arrays)
        storage.write(storage.join(folder, name), data)
        return {"name": name, "sha256": hashlib.sha256(data).hexdigest()}

    def _broadcast_made(self, found: StoredBatch | None) -> StoredBatch:
        stored = self._broadcast(found)
        assert stored, "what was created is there"
        return stored

    def _broadcast(self, found: StoredBatch | None) -> StoredBatch | None:
        """What the first rank found."""
        held = [found]
        dist.broadcast_object_list(held, src=0, group=self._group)
        return held[0]


def _collect_arrays(micro: MicroBatch) -> Arrays:
    """All that `micro` is, by name."""
    arrays = {f"array.{name}": array for name, array in micro.arrays.items()}
    named = {"samples": micro.samples, "sources": micro.sources, "pieces": micro.pieces}
    return arrays | named


def _find_next_wave(state: TrainState) -> int:
    """The number of the next wave that a batch of `state` draws."""
    return int(state.carried.get(WAVES_DRAWN, 0))
