"""Signals that ask a process to stop cleanly: SIGTERM, and SIGHUP when its terminal closes.

One request may arrive as several signals. `timeout` signals its command and then the whole group.
systemd and Slurm may send SIGHUP in addition to SIGTERM. A shell that gets SIGHUP forwards it to
jobs that the kernel has already signalled.
"""

import contextlib
import errno
import io
import signal
import sys
import time

REPEAT_SECONDS = 2.0  # another signal within this time after the first is the same request
STOP_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


def list_stop_signals() -> tuple[signal.Signals, ...]:
    """Return the stop signals that this process handles.

    A process that is started with SIGHUP ignored (`nohup`) is meant to outlive its terminal.
    """
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return (signal.SIGTERM,) if ignored else STOP_SIGNALS


class StopRequest:
    """A stop request, which distinguishes its repeated signals from a second request."""

    def __init__(self) -> None:
        self._first: float | None = None  # time.monotonic()

    def is_repeat(self, number: int) -> bool:
        """Return whether the signal `number`, received now, belongs to the same request as before.

        A later SIGTERM, or a second Ctrl-C at any time, is a new request. A second SIGHUP is always
        a repeat, because a terminal closes only once.
        """
        now = time.monotonic()
        if self._first is None:
            self._first = now
            return False
        if number == signal.SIGINT:
            return False
        return number == signal.SIGHUP or now - self._first < REPEAT_SECONDS


class _Terminal(io.FileIO):
    """Raw stream of a terminal that discards output once the terminal has closed."""

    def write(self, text: object) -> int:
        try:
            return super().write(text)  # type: ignore[arg-type]
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return len(memoryview(text))  # type: ignore[arg-type]


def outlive_terminal() -> None:
    """Make standard output and standard error accept text after their terminal has closed.

    Otherwise the next progress line would end a run without any stop request, and a stopping run
    would end in a traceback.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if not isinstance(stream, io.TextIOWrapper) or not stream.isatty():
            continue
        if isinstance(getattr(stream.buffer, "raw", None), _Terminal):
            continue
        with contextlib.suppress(OSError):
            stream.flush()
        raw = _Terminal(stream.fileno(), "w", closefd=False)
        lasting = io.TextIOWrapper(
            io.BufferedWriter(raw),
            encoding=stream.encoding,
            errors=stream.errors,
            line_buffering=True,
        )
        setattr(sys, name, lasting)
