"""What the ranks of a run have sampled for them, ahead of the batch that they train on.

All ranks call the same methods. With actors they write the weights and ask; without, where there is
a lag, they sample themselves, and what they sample waits in the run folder.
"""

import contextlib
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from trainrig import storage
from trainrig.errors import DataError
from trainrig.manifest import digest
from trainrig.parallel.fsdp import keep_gathered, reshard
from trainrig.tokens.batch_makers import NO_ARRAYS, Arrays, RolloutMaker, Waves
from trainrig.tokens.batches import MicroBatchSlot
from trainrig.train.rollout_pool.requests import (
    FAILED,
    REQUEST,
    RolloutRequest,
    choose_poll_interval,
    delete_requests,
    find_missing_units,
    name_rollouts_folder,
    raise_failure,
    read_unit,
    write_unit,
)
from trainrig.train.rollout_pool.weights import WeightWriter
from trainrig.train.run.run_folder import RunFolder, TrainingAttempt
from trainrig.train.state import TrainState

TELL_AFTER = 30.0  # s of waiting until that is on record


class RolloutsAhead:
    """The rollouts of batches to come, as one rank sees to them."""

    def __init__(
        self,
        maker: RolloutMaker,
        folder: RunFolder,
        attempt: TrainingAttempt,
        group: dist.ProcessGroup,
        actors: bool,
    ) -> None:
        """`actors`: whether there are some to ask. Collective."""
        self.maker, self._folder, self._attempt = maker, folder, attempt
        self._group, self._actors = group, actors
        self.lag = maker.lag
        self._writer = WeightWriter(group)
        self._rollouts = name_rollouts_folder(folder)
        if dist.get_rank() == 0:
            self._forget_earlier()
        dist.barrier(group)

    def ask(
        self,
        state: TrainState,
        number: int,
        stored: Callable[[int], bool],
        slots: Callable[[int], Sequence[MicroBatchSlot]],
        gather_once: bool,
    ) -> None:
        """See that what is to be sampled with the weights of `state`, from which batch `number` is
        trained on, is asked for or sampled.

        `stored`: whether a batch is; `slots`: this rank's, of so many micro-batches.
        """
        first = range(self.lag) if number == 0 else ()
        for wanted in (*first, number + self.lag):
            count, folder = self.maker.micro_batches(wanted), self._name_folder(wanted)
            missing = self._broadcast(
                functools.partial(_find_lacking, stored, wanted, folder, count)
            )
            if not missing:
                continue
            if self._actors:
                weights = storage.join(folder, f"weights-attempt-{self._attempt.number}")
                self._writer.write(state, weights, self._attempt.number)
                if dist.get_rank() == 0:
                    RolloutRequest(folder, wanted, count, weights, self._attempt.number).write()
            else:
                mine = [each.index for each in slots(count) if each.real and each.index in missing]
                self._sample(state, wanted, mine, gather_once)
                dist.barrier(self._group)  # what the others sample is there, too

    def draw_waves(
        self,
        state: TrainState,
        waves: Waves,
        first: int,
        slots: Callable[[int], Sequence[MicroBatchSlot]],
        gather_once: bool,
        alive: Callable[[], None],
    ) -> tuple[Sequence[Arrays], int]:
        """What is sampled with the weights of `state` for the batch of `waves`, wave by wave from
        number `first` on until it is full, and how many waves that took.

        `slots`: see `ask`. Collective.
        """
        weights = storage.join(self._name_folder(first), f"weights-attempt-{self._attempt.number}")
        wave = first
        while (filled := waves.find_filled()) is None:
            if self._actors and wave == first:
                self._writer.write(state, weights, self._attempt.number)
            count, asked = waves.next()
            if not self._actors:
                mine = [each.index for each in slots(count) if each.real]
                self._sample(state, wave, mine, gather_once, asked)
                dist.barrier(self._group)  # what the others sample is there, too
            elif dist.get_rank() == 0:
                request = RolloutRequest(
                    self._name_folder(wave), wave, count, weights, self._attempt.number, bool(asked)
                )
                request.write(asked)
            units = self.wait(wave, range(count), alive)
            waves.take([units[index] for index in range(count)])
            wave += 1
        dist.barrier(self._group)  # all have read what is deleted now
        for drawn in range(first, wave):
            self.forget(drawn)
        return filled, wave - first

    def check_asked(self, number: int) -> None:
        """Raise DataError unless what batch `number` lacks is going to be sampled."""
        folder, count = self._name_folder(number), self.maker.micro_batches(number)
        missing, asked = self._broadcast(
            lambda: (
                find_missing_units(folder, count),
                storage.exists(storage.join(folder, REQUEST)),
            )
        )
        if missing and not asked:
            raise DataError(
                f"{folder}: gone, and so are the weights of {self.lag} batches ago to "
                "sample it with; restore that folder, or remove the checkpoints after them"
            )
        if missing and not self._actors:
            raise DataError(
                f"{folder}: {len(missing)} of {count} micro-batches are still to be sampled by "
                "actors, with weights of before; set rollouts.actors = 1 or more"
            )

    def wait(
        self, number: int, indices: Sequence[int], alive: Callable[[], None]
    ) -> Mapping[int, Arrays]:
        """What was sampled for those micro-batches of batch `number`, once all that any rank waits
        for is there; calls `alive` meanwhile. Raises what sampling it failed by. Collective."""
        folder, began, told = self._name_folder(number), time.monotonic(), False
        found: dict[int, Arrays] = {}
        for index in indices:
            while (sampled := read_unit(folder, index)) is None:
                raise_failure(folder)
                alive()
                if not told and time.monotonic() - began > TELL_AFTER:
                    told = True
                    details = {"attempt": self._attempt.number, "batch": number, "unit": index}
                    self._folder.record("waiting_for_rollouts", **details)
                time.sleep(choose_poll_interval(folder))
            found[index] = sampled
        # Collectives that follow have less patience than a pool without actors may need.
        dist.barrier(self._group)
        return found

    def forget(self, number: int) -> None:
        """Delete what was sampled for batch `number`, which is stored, or as the wave `number`,
        which has been read."""
        if dist.get_rank() == 0:
            with contextlib.suppress(OSError):  # an actor that was given up may still write there
                delete_requests(self._name_batch_folder(number))

    def _sample(
        self,
        state: TrainState,
        number: int,
        indices: Sequence[int],
        gather_once: bool,
        asked: Arrays = NO_ARRAYS,
    ) -> None:
        try:
            with torch.no_grad(), keep_gathered(state.model, gather_once):
                for index in indices:
                    arrays = self.maker.sample(state.model, number, index, asked)
                    write_unit(self._name_folder(number), index, arrays)
        finally:  # gathered, for a backward pass that does not come
            reshard(state.model)

    def _name_batch_folder(self, number: int) -> str:
        key = digest(self.maker.identity())[:8]
        return storage.join(self._rollouts, f"batch_{number:08d}-{key}")

    def _name_folder(self, number: int) -> str:
        folder = self._name_batch_folder(number)
        if self.lag:  # the weights are of before: no attempt after has them
            return folder
        return storage.join(folder, f"attempt-{self._attempt.number}")

    def _forget_earlier(self) -> None:
        """What earlier attempts failed by; and without a lag, all that they asked for."""
        if not self.lag:
            with contextlib.suppress(OSError):  # an actor may still write for the attempt before
                delete_requests(self._rollouts)
        for path in storage.list_files(self._rollouts, FAILED):
            storage.delete(path)

    def _broadcast(self, look: Callable[[], Any]) -> Any:
        """What the first rank sees."""
        held = [look() if dist.get_rank() == 0 else None]
        dist.broadcast_object_list(held, src=0, group=self._group)
        return held[0]


def _find_lacking(stored: Callable[[int], bool], number: int, folder: str, count: int) -> list[int]:
    """Units of batch `number` that are to be sampled into `folder`: none of one that is stored."""
    return [] if stored(number) else find_missing_units(folder, count)
