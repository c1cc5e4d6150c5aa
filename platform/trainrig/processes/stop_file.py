"""Requests to stop a run: SIGTERM, SIGHUP, Ctrl-C or a file `stop` in the run folder."""

import logging
import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Any, Self

from trainrig import storage
from trainrig.errors import ClusterError
from trainrig.processes.stop_signals import StopRequest, list_stop_signals

log = logging.getLogger(__name__)
FILE = "stop"
LOOK_EVERY = 1.0  # s between two checks for the file: in a bucket, each check is a request
SIGNALS = {signal.SIGTERM: "SIGTERM", signal.SIGHUP: "SIGHUP", signal.SIGINT: "Ctrl-C"}


class StopRequests:
    """Context manager that collects stop requests while its block runs.

    The first signal is only remembered. A second signal that is not a repeat of the first (see
    `StopRequest`) has its usual effect at once.
    """

    def __init__(self, folder: str) -> None:
        self._file = storage.join(folder, FILE)
        self._how: str | None = None
        self._signalled = False  # True after the first signal, also if the file was seen before
        self._looked = float("-inf")
        self._failing = False  # True if the last check for the file failed
        self._handlers: dict[signal.Signals, Any] = {}
        self._request = StopRequest()

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (*list_stop_signals(), signal.SIGINT):
                self._handlers[number] = signal.signal(number, self._ask)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._restore_handlers()

    def read_request(self) -> str | None:
        """Return how the run was asked to stop, or None if it was not.

        If the check for the file fails, the run continues and the check is tried again.
        """
        if self._how is None and time.monotonic() - self._looked >= LOOK_EVERY:
            try:
                with storage.briefly():
                    if storage.exists(self._file):
                        self._how = self._how or f"the file {self._file}"
                self._failing = False
            except (OSError, ClusterError) as problem:
                if not self._failing:
                    log.warning(
                        "%s: the stop file could not be looked for (%s); trying again",
                        self._file,
                        problem,
                    )
                self._failing = True
            self._looked = time.monotonic()
        return self._how

    def remove_request(self) -> None:
        """Remove the stop file, so that the run can be started again."""
        try:
            storage.delete(self._file)
        except (OSError, ClusterError) as problem:
            log.warning(
                "%s: remove this file before you run the command again (%s)", self._file, problem
            )

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self._request.is_repeat(number):
            return
        if self._signalled:
            self._restore_handlers()
            signal.raise_signal(number)
        self._signalled = True
        self._how = self._how or SIGNALS[signal.Signals(number)]

    def _restore_handlers(self) -> None:
        while self._handlers:
            signal.signal(*self._handlers.popitem())
