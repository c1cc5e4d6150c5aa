"""Why an attempt at a run ended, classified by who can act on it.

done           it is finished
input          the run file, the command line or the output folder: the user's to fix
data           the files that it names, or a model that diverged on them
cluster        machines, network or storage, which trainrig itself retried in vain
lost node      its processes were killed: by the kernel for want of memory, or with a machine
preempted      it was told to go by a machine that is taken back, and ended whole
stopped        the user asked it to, and it ended whole; or had to be ended
out of budget  it had cost what it may
deadline       it had taken as long as it may
unknown        anything else: a bug, with a traceback
"""

import json
import re
import signal
from dataclasses import dataclass
from typing import Any, Literal, get_args

from trainrig import storage
from trainrig.errors import ClusterError, ConfigError, DataError, Diverged, OutputTaken, Unfinished
from trainrig.launch.redaction import redact

Cause = Literal[
    "done",
    "input",
    "data",
    "cluster",
    "lost node",
    "preempted",
    "stopped",
    "out of budget",
    "deadline",
    "unknown",
]
CAUSES: tuple[Cause, ...] = get_args(Cause)
OF_ERRORS: dict[str, Cause] = {
    ConfigError.__name__: "input",
    OutputTaken.__name__: "input",
    DataError.__name__: "data",
    Diverged.__name__: "data",
    ClusterError.__name__: "cluster",
    Unfinished.__name__: "preempted",
}
# What a run says that found the file `stop` in its folder, or was interrupted at a terminal.
BY_USER = re.compile(r"stopped by the file |^interrupted;")
KILLED = {-signal.SIGKILL, -signal.SIGTERM, -signal.SIGHUP, 128 + signal.SIGKILL}
STATES: dict[Cause, str] = {
    "done": "done",
    "input": "refused",
    "preempted": "preempted",
    "stopped": "stopped",
    "out of budget": "out of budget",
}  # all others: failed


@dataclass(frozen=True)
class RunEnd:
    """How a child ended."""

    exit_code: int  # negative: the signal that ended it
    cause: Cause
    message: str  # one line, or the last lines of what it said

    @property
    def state(self) -> str:
        """What the run is called when this end is its last."""
        return STATES.get(self.cause, "failed")


def find_end(
    exit_code: int, outcome: dict[str, Any] | None, asked: Cause | None, last_words: str
) -> RunEnd:
    """Why a child with `exit_code` ended.

    `outcome` is what it wrote about that itself, `asked` why we told it to end, if we did;
    `last_words` the end of its log, for one that wrote nothing.
    """
    message = str(outcome["message"]) if outcome else last_words
    if exit_code == 0:
        return RunEnd(0, "done", "")
    if asked:  # whatever came of it: it is over because we wanted it to be
        return RunEnd(exit_code, asked, message)
    if outcome and BY_USER.search(message):
        return RunEnd(exit_code, "stopped", message)
    if outcome and outcome["kind"] in OF_ERRORS:
        return RunEnd(exit_code, OF_ERRORS[outcome["kind"]], message)
    if exit_code == Unfinished.exit_code:
        return RunEnd(exit_code, "preempted", message)
    if exit_code in KILLED:
        return RunEnd(exit_code, "lost node", _describe_kill(exit_code, message))
    if outcome is None and exit_code == ConfigError.exit_code:  # a wrong command line
        return RunEnd(exit_code, "input", message)
    return RunEnd(exit_code, "unknown", message or f"exit code {exit_code}")


def _describe_kill(exit_code: int, last_words: str) -> str:
    number = -exit_code if exit_code < 0 else exit_code - 128
    said = f"; it last said: {last_words}" if last_words else ""
    memory = ", as the kernel does for want of memory" if number == signal.SIGKILL else ""
    return f"killed by {signal.Signals(number).name}{memory}{said}"


def read_outcome(path: str) -> dict[str, Any] | None:
    """What a child wrote to `path` about its end, masked; None: nothing, or it died in it."""
    try:
        found = json.loads(storage.read(path))
    except (FileNotFoundError, ValueError):
        return None
    whole = isinstance(found, dict) and {"kind", "message"} <= found.keys()
    return redact(found) if whole else None
