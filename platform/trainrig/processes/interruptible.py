"""Calls of native code that a signal can interrupt.

Python runs the handler of a signal in the main thread, and only between its own instructions. A
library that computes for minutes in native code there delays a stop request for as long.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Result = TypeVar("Result")
Item = TypeVar("Item")
_LAST_SECONDS = 2.0  # seconds that an interrupted call has to end at its next item


class Interrupted(Exception):
    """Raised inside an interrupted call, to end it."""


class InterruptibleCall:
    """A call in another thread, for which the caller waits until a signal interrupts the wait.

    After that, the thread ends at the next item of `feed`. If the native code asks for none, the
    thread ends with the process.
    """

    def __init__(self) -> None:
        self._stopped = threading.Event()

    def feed(self, items: Iterable[Item]) -> Iterator[Item]:
        """Yield `items` to the native code; raise Interrupted once the call is interrupted."""
        for item in items:
            if self._stopped.is_set():
                raise Interrupted
            yield item

    def run(self, function: Callable[[], Result]) -> Result:
        """Return the result of `function`, or raise what it or a handler of a signal raises."""
        if threading.current_thread() is not threading.main_thread():
            return function()
        results: list[Result] = []
        errors: list[BaseException] = []

        def call() -> None:
            try:
                results.append(function())
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=call, name="interruptible call", daemon=True)
        try:
            thread.start()
            thread.join()
        except BaseException:
            self._stopped.set()
            if thread.is_alive():
                thread.join(_LAST_SECONDS)
            raise
        if errors:
            raise errors[0]
        return results[0]
