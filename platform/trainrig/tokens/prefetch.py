"""Preparation of batches in a thread, ahead of the step that trains on them."""

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Generic, Self, TypeVar

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
