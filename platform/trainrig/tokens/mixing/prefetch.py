"""Batches of the steps to come, prepared while the present one is trained on."""

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
    """Prepares one step after another, from `first` on, until it is stopped or one fails."""

    def __init__(self, prepare: Callable[[int], Prepared], first: int, ahead: int) -> None:
        self._prepare = prepare
        self._answers: queue.Queue[_Answer[Prepared]] = queue.Queue(ahead)
        self._stopped = threading.Event()
        # A daemon: a process whose training has failed is not kept alive by a disk that hangs.
        self._thread = threading.Thread(
            target=self._run, args=(first,), name=f"batches from step {first}", daemon=True
        )
        self._thread.start()

    def take(self) -> _Answer[Prepared]:
        return self._answers.get()

    def stop(self) -> None:
        """Returns once nothing is being prepared any more."""
        self._stopped.set()
        while self._thread.is_alive():  # it may wait for room: make some until it looks up
            try:
                self._answers.get_nowait()
            except queue.Empty:
                self._thread.join(timeout=0.01)

    def _run(self, step: int) -> None:
        while not self._stopped.is_set():
            try:
                answer = _Answer(step, self._prepare(step), None)
            except BaseException as problem:  # or it would be waited for without end
                answer = _Answer[Prepared](step, None, problem)
            self._answers.put(answer)
            if answer.problem:
                return
            step += 1


class Prefetch(Generic[Prepared]):
    """What `prepare` makes of a step, made in a thread before it is asked for.

    At most `ahead` steps wait, and one more is being made.

    Values are those of `prepare`, which has to be a pure function, and so are its errors: each is
    raised when its step is asked for, not before. Asked for another step than the next, it begins
    there afresh. With `ahead` = 0 there is no thread. To be used in a `with` statement.
    """

    def __init__(self, prepare: Callable[[int], Prepared], ahead: int) -> None:
        self._prepare = prepare
        self._ahead = ahead
        self._thread: _Thread[Prepared] | None = None
        self._next = 0  # the step that the thread will hand over next

    def at(self, step: int) -> Prepared:
        """What `prepare(step)` returns. Raises what it raises."""
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
        return answer.value  # type: ignore[return-value]  # None only beside a problem

    def close(self) -> None:
        """Stop preparing; returns when the thread has ended."""
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
