"""Batches made during training, each from the weights after the previous step.

All ranks make a batch together, each its assigned micro-batches, and store all of it before
training on it. Its samples may come from rollout actors, and from earlier weights
(rollout_pool/asking.py). Afterwards it is read from the run folder like any other batch, on any
number of ranks. A resumed run reads stored batches and never makes one again, so their randomness
and their cost occur once.

    online/batch_00000003-c0ffee01/attempt-2/00001.npz  a micro-batch, by the attempt that made it
    online/batch_00000003-c0ffee01/attempt-2/left.npz   what the next batch continues with, if any
    online/batch_00000003-c0ffee01/batch.json           totals; created once, at the end

The first attempt to create `batch.json` has made the batch; an old attempt that still runs comes
too late. The hash in the folder's name identifies the data skipped before the batch. After a
roll-back that skips data, a batch made from the old weights is thus not used again.
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
from trainrig.objectives.objective_interface import Carrying, Objective
from trainrig.parallel.mesh import WorkerMesh
from trainrig.parallel.sharding.fsdp import keep_gathered, reshard
from trainrig.rl.rollout_maker import (
    NO_ARRAYS,
    Arrays,
    BatchMaker,
    RolloutMaker,
)
from trainrig.rl.rollouts_ahead import RolloutsAhead
from trainrig.tokens.batches import MicroBatch, MicroBatchSlot, assign_micro_batches
from trainrig.train.run.run_folder import RunFolder, TrainingAttempt
from trainrig.train.run.step_data import LEFT, ONLINE_FOLDER, RECORD, StoredBatch, pack_arrays
from trainrig.train.state import TrainState

# Key in `TrainState.carried`: waves of rollouts drawn so far, where batches may need several.
WAVES_DRAWN = "waves_drawn"


class OnlineBatches:
    """Batches that `maker` makes during the run. All ranks call `prepare` before each step."""

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
        """Set up the batches. Collective.

        Args:
            maker: Makes the micro-batches.
            folder: Run folder that stores them.
            attempt: The current attempt.
            virtual: Upper limit of virtual workers; None means the number of ranks.
            mesh: The ranks that hold the models.
            gather_once: Whether the models are sharded to be gathered once a step.
            actors: Whether the run has rollout actors that sample.
        """
        self.maker = maker
        self.sources = maker.sources
        self._folder = folder
        self._attempt = attempt
        self._virtual = virtual
        self._gather_once = gather_once
        self._mesh = mesh
        self._group = dist.new_group(backend="gloo")
        self._stored: StoredBatch | None = None
        self._ahead: RolloutsAhead | None = None
        if isinstance(maker, RolloutMaker) and (actors or maker.lag or maker.draws_waves):
            self._ahead = RolloutsAhead(maker, folder, attempt, self._group, actors)

    def prepare(self, state: TrainState, alive: Callable[[], None] = lambda: None) -> None:
        """Ensure that the batch of the next step of `state` is stored. Collective.

        `alive` is called while this waits for actors. Raises DataError if training on the batch has
        begun and its folder is gone, or if the remaining samples can no longer be made.
        """
        number, update = divmod(state.data_step, self.maker.updates)
        if self._stored and self._stored.number == number and update:
            return
        folder = self._name_folder(number, state)
        stored = self._broadcast(StoredBatch.read(folder) if dist.get_rank() == 0 else None)
        # A wave is requested only once the results of the previous one are known.
        at_once = self._ahead if self._ahead and not self._ahead.maker.draws_waves else None
        if at_once and not update and (stored is None or at_once.lag):
            is_stored = functools.partial(self._is_stored, state)
            at_once.ask(state, number, is_stored, self._assign_slots, self._gather_once)
        if stored is None:
            if update:
                raise DataError(
                    f"{folder}: the folder is missing after {update} of {self.maker.updates} "
                    "updates from "
                    "it; restore that folder, or remove the checkpoints after it"
                )
            if at_once:
                at_once.check_requested(number)
            stored = self._make(state, number, folder, alive)
        if at_once:
            at_once.forget(number)
        self._stored = stored

    def carry(
        self, state: TrainState, objective: Objective, diagnostics: Mapping[str, float]
    ) -> None:
        """Update the numbers that `state` carries to the next batch, after a batch's last update.

        They are those of `objective`, which gets the step's `diagnostics`, and the number of the
        next wave. After any other update of a batch, this does nothing.
        """
        if state.data_step % self.maker.updates:
            return
        batch = self._find_batch(state.data_step - 1)
        if isinstance(objective, Carrying):
            carried = objective.carry(state.carried, diagnostics, batch.denominators)
            state.carried = {**state.carried, **carried}
        if self._ahead and self._ahead.maker.draws_waves:
            state.carried = {**state.carried, WAVES_DRAWN: _find_next_wave(state) + batch.waves}

    def micro_batches(self, step: int) -> int:
        """Return the number of micro-batches of the batch of `step`."""
        return len(self._find_batch(step).files)

    def denominators(self, step: int) -> Mapping[str, int]:
        """Return the denominators of the loss terms of the batch of `step`, by name."""
        return self._find_batch(step).denominators

    def micro_batch(self, step: int, index: int) -> MicroBatch:
        """Read micro-batch `index` of the batch of `step`."""
        return self._find_batch(step).read_micro_batch(index)

    def data_before(self, step: int) -> Mapping[str, Any]:
        """Return the description of the data used before `step`, which checkpoints record."""
        return self.maker.data_before(step)

    def _find_batch(self, step: int) -> StoredBatch:
        number = step // self.maker.updates
        assert self._stored and self._stored.number == number, f"step {step} was not prepared"
        return self._stored

    def _name_folder(self, number: int, state: TrainState) -> str:
        first = number * self.maker.updates
        past = [[begin, min(end, first)] for begin, end in state.skipped if begin < first]
        key = digest([self.maker.identity(), past])[:8]
        return storage.join(self._folder.path, ONLINE_FOLDER, f"batch_{number:08d}-{key}")

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
            # No backward pass follows that would release the gathered parameters.
            for model in (state.model, *state.others.values()):
                reshard(model)
        parts: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(parts, mine, group=self._group)
        if dist.get_rank():
            return self._broadcast_made(None)
        made = {index: result for part in parts for index, result in part.items()}
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
        # If the record exists, another attempt was first, and its batch is the one that counts.
        storage.create(storage.join(folder, RECORD), json.dumps(record, indent=1).encode())
        return self._broadcast_made(StoredBatch.read(folder))

    def _begin(
        self,
        state: TrainState,
        number: int,
        slots: Sequence[MicroBatchSlot],
        alive: Callable[[], None],
    ) -> tuple[Callable[[int], MicroBatch], int, Arrays]:
        """Prepare to make the micro-batches of `slots` for batch `number`.

        Waits for all samples that they need. Returns the function that makes a micro-batch by
        index, the number of waves drawn, and what is left for the next batch.
        """
        models = (state.model, state.others)
        ahead = self._ahead
        if ahead is None:
            return functools.partial(self.maker.make, *models, number), 1, NO_ARRAYS
        maker = ahead.maker
        waves = 1
        left = NO_ARRAYS
        sampled: Mapping[int, Arrays]
        if maker.draws_waves:
            drawn = maker.begin(number, self._read_left_before(number, state))
            first = _find_next_wave(state)
            gather = self._gather_once
            units, waves = ahead.draw_waves(state, drawn, first, self._assign_slots, gather, alive)
            sampled = dict(enumerate(units))
            left = drawn.list_left()
        else:
            sampled = ahead.wait(number, [slot.index for slot in slots], alive)

        def complete(index: int) -> MicroBatch:
            return maker.complete(*models, number, index, sampled[index])

        return complete, waves, left

    def _read_left_before(self, number: int, state: TrainState) -> Arrays:
        """Read what the previous batch left for batch `number`. Raise DataError if it is gone."""
        if not (number and self._ahead and self._ahead.maker.carries_over):
            return NO_ARRAYS
        folder = self._name_folder(number - 1, state)
        before = self._broadcast(StoredBatch.read(folder) if dist.get_rank() == 0 else None)
        if before is None:
            raise DataError(
                f"{folder}: the folder is missing, with the completions that batch {number} "
                "continues; "
                "restore that folder, or remove the checkpoints after it"
            )
        return before.read_left()

    def _write(self, arrays: Arrays, folder: str, file: str) -> dict[str, str]:
        name = f"attempt-{self._attempt.number}/{file}.npz"
        data = pack_arrays(arrays)
        storage.write(storage.join(folder, name), data)
        return {"name": name, "sha256": hashlib.sha256(data).hexdigest()}

    def _broadcast_made(self, found: StoredBatch | None) -> StoredBatch:
        stored = self._broadcast(found)
        assert stored, "rank 0 has the stored batch"
        return stored

    def _broadcast(self, found: StoredBatch | None) -> StoredBatch | None:
        """Return the value of `found` on rank 0. Collective."""
        held = [found]
        dist.broadcast_object_list(held, src=0, group=self._group)
        return held[0]


def _collect_arrays(micro: MicroBatch) -> Arrays:
    """Return all arrays of `micro` by name, as they are stored."""
    arrays = {f"array.{name}": array for name, array in micro.arrays.items()}
    named = {"samples": micro.samples, "sources": micro.sources, "pieces": micro.pieces}
    return arrays | named


def _find_next_wave(state: TrainState) -> int:
    """Return the number of the next wave that a batch of `state` draws."""
    return int(state.carried.get(WAVES_DRAWN, 0))
