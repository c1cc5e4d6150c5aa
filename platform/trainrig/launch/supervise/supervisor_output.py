"""Output of a supervisor: the copied log of the verb, and the user's command at the end of a run.

Secrets are masked in the run's log and on standard output.
"""

import contextlib
import logging
import os
import shlex
import subprocess
import sys
from collections import deque
from collections.abc import Mapping
from typing import Any

from trainrig.errors import ClusterError
from trainrig.launch.redaction import Redactor, find_secrets
from trainrig.launch.supervise.run_record import RunRecord
from trainrig.processes.append_log import Appender
from trainrig.processes.child_process import kill_group

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


SAID = 300  # characters of the command's output that are recorded


def notify(command: str, seconds: float, facts: Mapping[str, str]) -> dict[str, Any]:
    """Run `command` without a shell, with each fact as TRAINRIG_NAME, and return the result.

    After `seconds` the command and all processes that it started are killed. Nothing is raised: how
    a run ended does not depend on its notification. The result has `exit_code`, or `problem`, or
    both.
    """
    told = {f"TRAINRIG_{name.upper()}": _remove_nul(value) for name, value in facts.items()}
    try:
        process = subprocess.Popen(
            shlex.split(command),
            env={**os.environ, **told},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        return {"problem": str(error)}
    try:
        said, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        kill_group(process)
        return {"problem": f"took more than {seconds:g} s"}
    result: dict[str, Any] = {"exit_code": process.returncode}
    if process.returncode:
        result["problem"] = said.decode(errors="replace").strip()[-SAID:]
    return result


def _remove_nul(text: str) -> str:
    """Remove NUL, the one character that an environment variable cannot hold."""
    return text.replace("\0", "")
