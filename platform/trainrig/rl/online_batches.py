"""Batches made during training, each from the weights after the previous step.

All ranks make a batch together, each its assigned micro-batches, and store all of it before
training on it. Its samples may come from rollout actors, and from earlier weights
(rl/rollouts_ahead.py). Afterwards it is read from the run folder like any other batch, on any
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

import torch.distributed as dist

from trainrig import storage
from trainrig.errors import DataError
from trainrig.manifest import digest
from trainrig.objectives.objective_interface import Carrying
from trainrig.rl.rollout_maker import NO_ARRAYS, Arrays, RolloutMaker
from trainrig.rl.rollouts_ahead import RolloutsAhead, assign_slots
from trainrig.rl.sampler_process import gather_for_sampling
from trainrig.tokens.batches import MicroBatch, MicroBatchSlot
from trainrig.train.run.run_folder import RunFolder
from trainrig.train.run.step_data import LEFT, ONLINE_FOLDER, RECORD, StoredBatch, pack_arrays
from trainrig.train.training_job import OnlineState, TrainingJob

# Key in `TrainState.carried`: waves of rollouts drawn so far, where batches may need several.
WAVES_DRAWN = "waves_drawn"


class StoredRollouts:
    """Batches that a maker makes during the run, on one rank; they implement `OnlineBatches`."""

    def __init__(
        self, maker: RolloutMaker, job: TrainingJob, attempt: int, state: OnlineState
    ) -> None:
        """Set up the batches of `maker` in the run folder of `job`. Collective."""
        self.maker = maker
        self.sources = maker.sources
        self._objective = job.objective
        self._folder = RunFolder(job.folder)
        self._attempt = attempt
        self.state = state
        self._training = job.training
        self._group = dist.new_group(backend="gloo")
        self._stored: StoredBatch | None = None
        self._ahead: RolloutsAhead | None = None
        if job.extra_actors or maker.lag or maker.draws_waves:
            self._ahead = RolloutsAhead(maker, job, attempt, state, self._group)

    def prepare(self, alive: Callable[[], None] = lambda: None) -> None:
        """Ensure that the batch of the state's next step is stored. Collective.

        `alive` is called while this waits for actors. Raises DataError if training on the batch has
        begun and its folder is gone, or if the remaining samples can no longer be made.
        """
        number, update = divmod(self.state.data_step, self.maker.updates)
        if self._stored and self._stored.number == number and update:
            return
        folder = self._name_folder(number)
        stored = self._broadcast(StoredBatch.read(folder) if dist.get_rank() == 0 else None)
        # A wave is requested only once the results of the previous one are known.
        at_once = self._ahead if self._ahead and not self._ahead.maker.draws_waves else None
        if at_once and not update and (stored is None or at_once.lag):
            at_once.ask(number, self._is_stored)
        if stored is None:
            if update:
                raise DataError(
                    f"{folder}: the folder is missing after {update} of {self.maker.updates} "
                    "updates from "
                    "it; restore that folder, or remove the checkpoints after it"
                )
            if at_once:
                at_once.check_requested(number)
            stored = self._make(number, folder, alive)
        if at_once:
            at_once.forget(number)
        self._stored = stored

    def carry(self, diagnostics: Mapping[str, float]) -> None:
        """Update the numbers that the state carries to the next batch, after a batch's last update.

        The objective, which gets the step's `diagnostics`, decides some of them. Another is the
        number of the next wave. After any other update of a batch, this does nothing.
        """
        state = self.state
        if state.data_step % self.maker.updates:
            return
        batch = self._find_batch(state.data_step - 1)
        if isinstance(self._objective, Carrying):
            carried = self._objective.carry(state.carried, diagnostics, batch.denominators)
            state.carried = {**state.carried, **carried}
        if self._ahead and self._ahead.maker.draws_waves:
            state.carried = {**state.carried, WAVES_DRAWN: self._find_next_wave() + batch.waves}

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

    def _name_folder(self, number: int) -> str:
        first = number * self.maker.updates
        past = [[begin, min(end, first)] for begin, end in self.state.skipped if begin < first]
        key = digest([self.maker.identity(), past])[:8]
        return storage.join(self._folder.path, ONLINE_FOLDER, f"batch_{number:08d}-{key}")

    def _find_next_wave(self) -> int:
        """Return the number of the next wave that a batch draws."""
        return int(self.state.carried.get(WAVES_DRAWN, 0))

    def _is_stored(self, number: int) -> bool:
        return storage.exists(storage.join(self._name_folder(number), RECORD))

    def _make(self, number: int, folder: str, alive: Callable[[], None]) -> StoredBatch:
        state = self.state
        count = self.maker.micro_batches(number)
        mine: dict[int, tuple[Mapping[str, str], Mapping[str, int]]] = {}
        self.maker.carried = state.carried
        slots = assign_slots(self._training, state.mesh, count)
        sampled, waves, left = self._sample(number, slots, alive)
        with gather_for_sampling(state.model, self._training, state.others.values()):
            for slot in slots:
                index = slot.index
                rollouts = sampled(index)
                micro = self.maker.complete(state.model, state.others, number, index, rollouts)
                if slot.real and state.mesh.is_reporter:
                    denominators = dict(self.maker.denominators(micro))
                    file = self._write(_collect_arrays(micro), folder, f"{index:05d}")
                    mine[index] = file, denominators
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
            "attempt": self._attempt,
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

    def _sample(
        self, number: int, slots: Sequence[MicroBatchSlot], alive: Callable[[], None]
    ) -> tuple[Callable[[int], Arrays], int, Arrays]:
        """Provide the samples of batch `number` for this rank's `slots`.

        Waits for all samples that other processes make. Returns the function that gives the samples
        of a micro-batch by index, the number of waves drawn, and what is left for the next batch.
        """
        state = self.state
        ahead = self._ahead
        if ahead is None:
            return functools.partial(self.maker.sample, state.model, number), 1, NO_ARRAYS
        if not ahead.maker.draws_waves:
            sampled = ahead.wait(number, [slot.index for slot in slots], alive)
            return sampled.__getitem__, 1, NO_ARRAYS
        drawn = ahead.maker.begin(number, self._read_left_before(number))
        first = self._find_next_wave()
        units, waves = ahead.draw_waves(drawn, first, alive)
        return units.__getitem__, waves, drawn.list_left()

    def _read_left_before(self, number: int) -> Arrays:
        """Read what the previous batch left for batch `number`. Raise DataError if it is gone."""
        if not (number and self._ahead and self._ahead.maker.carries_over):
            return NO_ARRAYS
        folder = self._name_folder(number - 1)
        before = self._broadcast(StoredBatch.read(folder) if dist.get_rank() == 0 else None)
        if before is None:
            raise DataError(
                f"{folder}: the folder is missing, with the completions that batch {number} "
                "continues; "
                "restore that folder, or remove the checkpoints after it"
            )
        return before.read_left()

    def _write(self, arrays: Arrays, folder: str, file: str) -> dict[str, str]:
        name = f"attempt-{self._attempt}/{file}.npz"
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
