"""Signals that ask a process to end whole: SIGTERM, and SIGHUP when its terminal closes.

One request may arrive as several signals. `timeout` signals its command and then the whole group;
systemd and Slurm may send SIGHUP beside SIGTERM; a shell that is hung up passes SIGHUP on to jobs
that the kernel has told already.
"""

import contextlib
import errno
import io
import signal
import sys
import time

REPEAT_SECONDS = 2.0  # s after a first signal in which another one is the same request
STOP_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


def list_stop_signals() -> tuple[signal.Signals, ...]:
    """Return the stop signals that this process heeds.

    Whoever starts it with SIGHUP ignored (`nohup`) wants it to outlive its terminal.
    """
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return (signal.SIGTERM,) if ignored else STOP_SIGNALS


class StopRequest:
    """One request to stop, told from a second one that follows it."""

    def __init__(self) -> None:
        self._first: float | None = None  # time.monotonic()

    def is_repeat(self, number: int) -> bool:
        """Return whether the signal that has just come belongs to the request before it.

        A later SIGTERM, or a second Ctrl-C at any time, asks for more than the first did. A second
        SIGHUP never does: a terminal closes once.
        """
        now = time.monotonic()
        if self._first is None:
            self._first = now
            return False
        if number == signal.SIGINT:
            return False
        return number == signal.SIGHUP or now - self._first < REPEAT_SECONDS


class _Terminal(io.FileIO):
    """A terminal that may close while this process goes on: what is written then is lost."""

    def write(self, text: object) -> int:
        try:
            return super().write(text)  # type: ignore[arg-type]
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return len(memoryview(text))  # type: ignore[arg-type]


def outlive_terminal() -> None:
    """Have standard output and standard error take text even after their terminal has closed.

    Otherwise the next line of progress would end a run that nobody asked to stop, and the last line
    of one that was asked would be lost to a traceback.
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
