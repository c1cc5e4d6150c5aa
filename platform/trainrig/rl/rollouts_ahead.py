"""Requests of a run's ranks for rollouts of later batches than the one that they train on.

All ranks call the same methods. With actors, they write the weights and a request. Without actors,
they sample themselves, and the samples of later batches wait in the run folder. For waves, units
and the lag, see rl/rollout_requests.py.
"""

import contextlib
import functools
import time
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

import torch.distributed as dist

from trainrig import storage
from trainrig.errors import DataError
from trainrig.manifest import digest
from trainrig.parallel.mesh import WorkerMesh
from trainrig.rl import rollout_requests
from trainrig.rl.rollout_maker import NO_ARRAYS, Arrays, RolloutMaker, Waves
from trainrig.rl.sampler_process import WeightWriter, gather_for_sampling
from trainrig.tokens.batches import MicroBatchSlot, assign_micro_batches
from trainrig.train.run.run_folder import RunFolder
from trainrig.train.run_file.training_settings import Training
from trainrig.train.training_job import OnlineState, TrainingJob

RECORD_AFTER = 30.0  # s of waiting until an event records it


class RolloutsAhead:
    """Rollouts of later batches, on one rank."""

    def __init__(
        self,
        maker: RolloutMaker,
        job: TrainingJob,
        attempt: int,
        state: OnlineState,
        group: dist.ProcessGroup,
    ) -> None:
        """Delete the requests of earlier attempts that are of no use. Collective."""
        self.maker = maker
        self._job = job
        folder = RunFolder(job.folder)
        self._folder = folder
        self._attempt = attempt
        self._state = state
        self._group = group
        self._actors = job.extra_actors is not None
        self.lag = maker.lag
        self._writer = WeightWriter(group)
        self._rollouts = rollout_requests.name_rollouts_folder(folder)
        if dist.get_rank() == 0:
            self._forget_earlier()
        dist.barrier(group)

    def ask(self, number: int, stored: Callable[[int], bool]) -> None:
        """Request or sample all rollouts to be made with the current weights. Collective.

        Batch `number` is trained on next. `stored`: returns whether a batch is stored.
        """
        first = range(self.lag) if number == 0 else ()
        for wanted in (*first, number + self.lag):
            count = self.maker.micro_batches(wanted)
            folder = self._name_folder(wanted)
            missing = self._broadcast(
                functools.partial(_find_lacking, stored, wanted, folder, count)
            )
            if not missing:
                continue
            if self._actors:
                weights = storage.join(folder, f"weights-attempt-{self._attempt}")
                self._writer.write(self._state, weights, self._attempt)
                if dist.get_rank() == 0:
                    rollout_requests.RolloutRequest(
                        folder, wanted, count, weights, self._attempt
                    ).write()
            else:
                self._sample(wanted, count, missing)

    def draw_waves(
        self, waves: Waves, first: int, alive: Callable[[], None]
    ) -> tuple[Sequence[Arrays], int]:
        """Sample waves with the current weights until the batch of `waves` is full. Collective.

        The first wave has number `first`. Returns the samples by unit, and the number of waves.
        `alive` is called while this waits for actors.
        """
        weights = storage.join(self._name_folder(first), f"weights-attempt-{self._attempt}")
        wave = first
        while (filled := waves.find_filled()) is None:
            if self._actors and wave == first:
                self._writer.write(self._state, weights, self._attempt)
            count, wave_input = waves.next()
            if not self._actors:
                self._sample(wave, count, range(count), wave_input)
            elif dist.get_rank() == 0:
                request = rollout_requests.RolloutRequest(
                    self._name_folder(wave),
                    wave,
                    count,
                    weights,
                    self._attempt,
                    bool(wave_input),
                )
                request.write(wave_input)
            units = self.wait(wave, range(count), alive)
            waves.take([units[index] for index in range(count)])
            wave += 1
        dist.barrier(self._group)  # all ranks have read what is now deleted
        for drawn in range(first, wave):
            self.forget(drawn)
        return filled, wave - first

    def check_requested(self, number: int) -> None:
        """Raise DataError unless the missing units of batch `number` can be sampled. Collective."""
        folder = self._name_folder(number)
        count = self.maker.micro_batches(number)
        missing, is_requested = self._broadcast(
            lambda: (
                rollout_requests.find_missing_units(folder, count),
                storage.exists(storage.join(folder, rollout_requests.REQUEST)),
            )
        )
        if missing and not is_requested:
            raise DataError(
                f"{folder}: gone, and so are the weights of {self.lag} batches ago to "
                "sample it with; restore that folder, or remove the checkpoints after them"
            )
        if missing and not self._actors:
            raise DataError(
                f"{folder}: {len(missing)} of {count} micro-batches must still be sampled "
                "by actors, with earlier weights; set rollouts.actors = 1 or more"
            )

    def wait(
        self, number: int, indices: Sequence[int], alive: Callable[[], None]
    ) -> Mapping[int, Arrays]:
        """Wait for the samples of micro-batches `indices` of batch `number`, and return them.

        Collective: returns when all ranks have theirs. Calls `alive` meanwhile. Raises the error of
        a failed sampler.
        """
        folder = self._name_folder(number)
        began = time.monotonic()
        recorded = False
        found: dict[int, Arrays] = {}
        for index in indices:
            while (sampled := rollout_requests.read_unit(folder, index)) is None:
                rollout_requests.raise_failure(folder)
                alive()
                if not recorded and time.monotonic() - began > RECORD_AFTER:
                    recorded = True
                    details = {"attempt": self._attempt, "batch": number, "unit": index}
                    self._folder.record("waiting_for_rollouts", **details)
                time.sleep(rollout_requests.choose_poll_interval(folder))
            found[index] = sampled
        # The timeout of the collectives that follow may be shorter than the wait for a pool of
        # actors.
        dist.barrier(self._group)
        return found

    def forget(self, number: int) -> None:
        """Delete the samples of a stored batch, or of a wave that was read, by its `number`."""
        if dist.get_rank() == 0:
            with contextlib.suppress(OSError):  # an abandoned actor may still write there
                rollout_requests.delete_requests(self._name_batch_folder(number))

    def _sample(
        self, number: int, count: int, missing: Container[int], wave_input: Arrays = NO_ARRAYS
    ) -> None:
        """Sample and store this rank's units of the `count` of batch or wave `number`.

        Those that are not `missing` are left out. Collective: waits for the other ranks' samples.
        """
        model = self._state.model
        folder = self._name_folder(number)
        slots = assign_slots(self._job.training, self._state.mesh, count)
        with gather_for_sampling(model, self._job.training):
            for index in [slot.index for slot in slots if slot.real and slot.index in missing]:
                arrays = self.maker.sample(model, number, index, wave_input)
                rollout_requests.write_unit(folder, index, arrays)
        dist.barrier(self._group)

    def _name_batch_folder(self, number: int) -> str:
        key = digest(self.maker.identity())[:8]
        return storage.join(self._rollouts, f"batch_{number:08d}-{key}")

    def _name_folder(self, number: int) -> str:
        folder = self._name_batch_folder(number)
        if self.lag:  # with a lag, later attempts no longer have the weights, so samples are shared
            return folder
        return storage.join(folder, f"attempt-{self._attempt}")

    def _forget_earlier(self) -> None:
        """Delete the failures of earlier attempts; without a lag, all their requests too."""
        if not self.lag:
            with contextlib.suppress(OSError):  # an actor may still write for an earlier attempt
                rollout_requests.delete_requests(self._rollouts)
        storage.delete_files(storage.list_files(self._rollouts, rollout_requests.FAILED))

    def _broadcast(self, look: Callable[[], Any]) -> Any:
        """Return the result of `look`, called on rank 0, to all ranks. Collective."""
        held = [look() if dist.get_rank() == 0 else None]
        dist.broadcast_object_list(held, src=0, group=self._group)
        return held[0]


def _find_lacking(stored: Callable[[int], bool], number: int, folder: str, count: int) -> list[int]:
    """Return the units of batch `number` missing in `folder`; [] if the batch is stored."""
    return [] if stored(number) else rollout_requests.find_missing_units(folder, count)


def assign_slots(training: Training, mesh: WorkerMesh, count: int) -> list[MicroBatchSlot]:
    """Return this rank's slots of the `count` micro-batches of a batch."""
    virtual = min(training.virtual_limit or mesh.data_size, count)
    return assign_micro_batches(count, virtual, mesh.data_rank, mesh.data_size)
