"""What a verb prints, with secrets masked, copied to the run's log and to our own output."""

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
LONGEST = 64 * 2**10  # bytes of a line; more of it becomes another one
LAST_LINES = 20  # remembered, for whoever asks why it ended
LAST_WORDS = 300  # characters of the message made of them


class LogCopy:
    """The log of one attempt. Nothing that goes wrong with it ends the run."""

    def __init__(self, record: RunRecord, attempt: int) -> None:
        self._record = record
        self._attempt = attempt
        self._masking = Redactor(find_secrets(os.environ))
        self._begun = b""  # of the line that is not yet at its end
        self._last: deque[bytes] = deque(maxlen=LAST_LINES)
        self._file: Appender | None = None
        self._files = 0  # that were given up

    def hear(self, piece: bytes) -> None:
        """Copy what `piece` completes, in whole lines."""
        self._take(self._masking.feed(piece))

    def end_lines(self) -> None:
        """Copy what is left of the child's last line. Another child may follow."""
        self._take(self._masking.flush())
        if self._begun:
            self._take(b"\n")

    def find_last_words(self) -> str:
        """The last line that says something; for a traceback, its last."""
        lines = (line.decode(errors="replace").strip() for line in reversed(self._last))
        return next((line[:LAST_WORDS] for line in lines if line), "")

    def close(self) -> None:
        """Return once all lies in storage, if storage takes it."""
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
        with contextlib.suppress(OSError):  # nobody reads it any more
            sys.stdout.buffer.write(lines)
            sys.stdout.buffer.flush()
        try:
            if self._file is None:
                self._file = self._record.open_log(self._attempt, self._files)
            self._file.write(lines)
        except (OSError, ClusterError) as problem:  # in a bucket: told of by a later write
            log.warning("%s: lines were lost: %s", self._record.log, problem)
            self._file = None
            self._files += 1
