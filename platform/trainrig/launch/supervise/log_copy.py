"""Copying of a verb's output to the run's log and to standard output, with secrets masked."""

import contextlib
import logging
import os
import sys
from collections import deque

from trainrig.errors import ClusterError
from trainrig.launch.record.run_record import RunRecord
from trainrig.launch.redaction import Redactor, find_secrets
from trainrig.processes.append_log import Appender

log = logging.getLogger(__name__)
LONGEST = 64 * 2**10  # bytes of a line; longer lines are split
LAST_LINES = 20  # lines kept to explain why the run ended
LAST_WORDS = 300  # characters of the message made of those lines


class LogCopy:
    """The log of one attempt. A failure to write it never ends the run."""

    def __init__(self, record: RunRecord, attempt: int) -> None:
        self._record = record
        self._attempt = attempt
        self._masking = Redactor(find_secrets(os.environ))
        self._begun = b""  # the beginning of a line that has not ended yet
        self._last: deque[bytes] = deque(maxlen=LAST_LINES)
        self._file: Appender | None = None
        self._files = 0  # number of log files given up after an error

    def hear(self, piece: bytes) -> None:
        """Copy the lines that `piece` completes."""
        self._take(self._masking.feed(piece))

    def end_lines(self) -> None:
        """Copy the rest of the child's last line. Another child may follow."""
        self._take(self._masking.flush())
        if self._begun:
            self._take(b"\n")

    def find_last_words(self) -> str:
        """Return the last line that is not blank, which for a traceback is the error."""
        lines = (line.decode(errors="replace").strip() for line in reversed(self._last))
        return next((line[:LAST_WORDS] for line in lines if line), "")

    def close(self) -> None:
        """Flush the log to storage, ignoring errors of storage."""
        if self._file:
            with contextlib.suppress(OSError, ClusterError):
                self._file.close()

    def _take(self, data: bytes) -> None:
        data = self._begun + data
        end = data.rfind(b"\n") + 1
        lines = data[:end]
        self._begun = data[end:]
        while len(self._begun) >= LONGEST:
            lines += self._begun[:LONGEST] + b"\n"
            self._begun = self._begun[LONGEST:]
        if lines:
            self._last.extend(lines.splitlines())
            self._write(lines)

    def _write(self, lines: bytes) -> None:
        with contextlib.suppress(OSError):  # no process reads our standard output any more
            sys.stdout.buffer.write(lines)
            sys.stdout.buffer.flush()
        try:
            if self._file is None:
                self._file = self._record.open_log(self._attempt, self._files)
            self._file.write(lines)
        except (OSError, ClusterError) as problem:  # a bucket reports errors of earlier writes
            log.warning("%s: lines were lost: %s", self._record.log, problem)
            self._file = None
            self._files += 1
