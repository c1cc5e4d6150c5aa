"""Batches that are made during a run: their interfaces, and their preparation ahead of the step.

Some batches are made from the weights after the step before, such as those of rollouts. A thread
prepares all others while the current step trains.
"""

import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType, TracebackType
from typing import Any, Generic, Self, TypeVar

from numpy.typing import NDArray

from trainrig.tokens.batches import MicroBatch

Arrays = Mapping[str, NDArray[Any]]
NO_ARRAYS: Arrays = MappingProxyType({})


class BatchMaker(ABC):
    """A source of batches that are made from the current weights, such as rollouts.

    Each batch is made from the weights after the step before, and stored before it is trained on
    (train/rollouts/online_batches.py). The maker is pickled to the workers.
    """

    sources: Sequence[str]  # source names, which the `sources` of micro-batches index
    updates: int = 1  # number of consecutive steps that train on each batch
    # Values that the objective carries from batch to batch, as of now
    # (objectives/objective_interface.py).
    carried: Mapping[str, float] = MappingProxyType({})

    @abstractmethod
    def identity(self) -> Mapping[str, Any]:
        """Return all that the batches depend on besides the weights, as JSON values."""

    @abstractmethod
    def micro_batches(self, number: int) -> int:
        """Return the number of micro-batches in batch `number` (from 0)."""

    @abstractmethod
    def make(self, model: Any, others: Mapping[str, Any], number: int, index: int) -> MicroBatch:
        """Return micro-batch `index` of batch `number`, a function of these and the weights alone.

        `others` holds the models besides the trained one, by name. The weights of `model` are
        gathered: its forward passes need no communication.

        Runs without gradients. Every rank calls it at the same time, each for its own micro-batch,
        and must call each of `others` as often as all other ranks do.
        """

    @abstractmethod
    def denominators(self, micro: MicroBatch) -> Mapping[str, int]:
        """Return what `micro` adds to each denominator of the batch.

        These are TOKENS and the denominators that the terms of the objective name.
        """

    def data_before(self, step: int) -> dict[str, Any]:
        """Return the cursor for the checkpoint and what it counts, as in `DataHistory`."""
        batch, update = divmod(step, self.updates)
        return {"online": dict(self.identity()), "batch": batch, "update": update}


class RolloutMaker(BatchMaker):
    """A maker of batches in two parts: sampling, and completion on the trainer's workers.

    Sampling runs on the trainer's workers or in separate processes (train/rollout_pool/).
    """

    # Number of batches by which sampling is ahead. Batch n is sampled from the weights with which
    # training on batch n - lag begins; the first `lag` batches from the initial weights.
    lag: int = 0
    # Maximum waves (rounds of sampling) for a batch; each has a unit for each of its micro-batches.
    # Above 1, the waves of a run are numbered, and `fill` makes a batch of those sampled for it.
    waves: int = 1
    # Whether a batch leaves unfinished samples that the next batch continues.
    carries_over: bool = False

    @property
    def draws_waves(self) -> bool:
        """Return whether the `Waves` from `begin` decide how many units are sampled, and how."""
        return self.waves > 1 or self.carries_over

    @abstractmethod
    def sample(self, model: Any, number: int, index: int, wave_input: Arrays = NO_ARRAYS) -> Arrays:
        """Return what `model` samples for unit `index` of batch or wave `number`.

        A unit is a micro-batch's worth of samples. `wave_input` is what `Waves.next` returned for
        the wave. The result is a function of these and the weights alone. Runs without gradients,
        with `model` gathered.
        """

    def begin(self, number: int, left: Arrays) -> "Waves":
        """Return the waves of batch `number`; `left` is what the batch before left unfinished."""
        return WholeWaves(self, number)

    def take_weights(self) -> None:
        """Handle a change of weights: called before `sample` gets a model with other weights."""

    def fill(self, drawn: Sequence[Sequence[Arrays]]) -> Sequence[Arrays] | None:
        """Choose the sampled micro-batches of a batch from the waves in `drawn` (lists of units).

        None requests another wave. The last possible wave must fill the batch.
        """
        return drawn[0]

    @abstractmethod
    def complete(
        self, model: Any, others: Mapping[str, Any], number: int, index: int, sampled: Arrays
    ) -> MicroBatch:
        """Return the micro-batch made of `sampled`; for the other parameters see `make`."""

    def make(self, model: Any, others: Mapping[str, Any], number: int, index: int) -> MicroBatch:
        """Sample micro-batch `index` and complete it; see `BatchMaker.make`."""
        return self.complete(model, others, number, index, self.sample(model, number, index))


class Waves(ABC):
    """The waves of sampling for one batch, from the first to the one that fills it."""

    @abstractmethod
    def next(self) -> tuple[int, Arrays]:
        """Return the number of units of the next wave, and the input for sampling them."""

    @abstractmethod
    def take(self, units: Sequence[Arrays]) -> None:
        """Receive the samples of the wave that `next` described."""

    @abstractmethod
    def find_filled(self) -> Sequence[Arrays] | None:
        """Return the sampled micro-batches of the batch, or None to request another wave."""

    def list_left(self) -> Arrays:
        """Return what a filled batch leaves for the next batch to continue."""
        return NO_ARRAYS


class WholeWaves(Waves):
    """Waves of a full batch each, from which `RolloutMaker.fill` chooses."""

    def __init__(self, maker: RolloutMaker, number: int) -> None:
        """Prepare the waves of batch `number` of `maker`."""
        self._maker = maker
        self._units = maker.micro_batches(number)
        self._drawn: list[Sequence[Arrays]] = []

    def next(self) -> tuple[int, Arrays]:
        """Return (number of micro-batches in the batch, no input) for each wave."""
        return self._units, NO_ARRAYS

    def take(self, units: Sequence[Arrays]) -> None:
        """Add the samples of the wave."""
        self._drawn.append(units)

    def find_filled(self) -> Sequence[Arrays] | None:
        """Return what `RolloutMaker.fill` chooses from the waves so far, or None."""
        return self._maker.fill(self._drawn) if self._drawn else None


Prepared = TypeVar("Prepared")


@dataclass(frozen=True)
class _Answer(Generic[Prepared]):
    step: int
    value: Prepared | None
    problem: BaseException | None


class _Thread(Generic[Prepared]):
    """A thread that prepares steps in order, from `first` on, until it is stopped or one fails."""

    def __init__(self, prepare: Callable[[int], Prepared], first: int, ahead: int) -> None:
        self._prepare = prepare
        self._answers: queue.Queue[_Answer[Prepared]] = queue.Queue(ahead)
        self._stopped = threading.Event()
        # A daemon thread: a hanging disk must not keep alive a process whose training has failed.
        self._thread = threading.Thread(
            target=self._run, args=(first,), name=f"batches from step {first}", daemon=True
        )
        self._thread.start()

    def take(self) -> _Answer[Prepared]:
        return self._answers.get()

    def stop(self) -> None:
        """Stop the thread; return when it has ended."""
        self._stopped.set()
        while self._thread.is_alive():  # a full queue may block the thread: empty it
            try:
                self._answers.get_nowait()
            except queue.Empty:
                self._thread.join(timeout=0.01)

    def _run(self, step: int) -> None:
        while not self._stopped.is_set():
            try:
                answer = _Answer(step, self._prepare(step), None)
            except BaseException as problem:  # caught, so that `take` does not wait forever
                answer = _Answer[Prepared](step, None, problem)
            self._answers.put(answer)
            if answer.problem:
                return
            step += 1


class Prefetch(Generic[Prepared]):
    """Prefetcher of `prepare(step)` for consecutive steps, in a thread; use it in a `with` block.

    At most `ahead` finished steps wait, while one more is being prepared. With `ahead` = 0 there is
    no thread.

    `prepare` must be a pure function. Its errors are raised when their step is requested, not
    earlier. Requesting a step other than the next one restarts the thread there.
    """

    def __init__(self, prepare: Callable[[int], Prepared], ahead: int) -> None:
        self._prepare = prepare
        self._ahead = ahead
        self._thread: _Thread[Prepared] | None = None
        self._next = 0  # step that the thread delivers next

    def at(self, step: int) -> Prepared:
        """Return `prepare(step)`; raise what it raises."""
        if not self._ahead:
            return self._prepare(step)
        if self._thread is None or step != self._next:
            self.close()
            self._thread = _Thread(self._prepare, step, self._ahead)
        answer = self._thread.take()
        assert answer.step == step
        self._next = step + 1
        if answer.problem:
            self.close()
            raise answer.problem
        return answer.value  # type: ignore[return-value]  # None only if there is a problem

    def close(self) -> None:
        """Stop preparing steps; return when the thread has ended."""
        if self._thread:
            self._thread.stop()
            self._thread = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
