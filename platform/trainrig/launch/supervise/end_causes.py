"""Causes of the end of an attempt at a run, classified by who can act on them.

done           the run is finished
input          the run file, the command line or the output folder is wrong: the user can fix it
data           the files that the run reads are wrong, or a model diverged on them
cluster        machines, network or storage failed, and trainrig's own retries did not help
lost node      the run's processes were killed: out of memory, or together with their machine
preempted      the machine is being reclaimed; the run saved and ended
stopped        the user stopped the run: it saved and ended, or was killed
out of budget  the run reached its limit of cost
deadline       the run reached its limit of time
unknown        any other failure: a bug, with a traceback
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
# The message of a run that found the file `stop` in its folder, or got Ctrl-C in a terminal.
BY_USER = re.compile(r"stopped by the file |^interrupted;")
KILLED = {-signal.SIGKILL, -signal.SIGTERM, -signal.SIGHUP, 128 + signal.SIGKILL}
STATES: dict[Cause, str] = {
    "done": "done",
    "input": "refused",
    "preempted": "preempted",
    "stopped": "stopped",
    "out of budget": "out of budget",
}  # every other cause gives the state `failed`


@dataclass(frozen=True)
class RunEnd:
    """End of a process that ran the verb: exit code, cause and message."""

    exit_code: int  # negative: minus the number of the signal that ended the process
    cause: Cause
    message: str  # one line, or the last lines of its output

    @property
    def state(self) -> str:
        """State of the run if this end is its last."""
        return STATES.get(self.cause, "failed")


def find_end(
    exit_code: int, outcome: dict[str, Any] | None, asked: Cause | None, last_words: str
) -> RunEnd:
    """Return how and why a process with `exit_code` ended.

    `outcome` is what the process itself wrote about its end, `asked` why it was asked to end, if it
    was. `last_words` are the last lines of its log, for a process that wrote no outcome.
    """
    message = str(outcome["message"]) if outcome else last_words
    if exit_code == 0:
        return RunEnd(0, "done", "")
    if asked:  # the process ended because it was asked to, whatever it reports
        return RunEnd(exit_code, asked, message)
    if outcome and BY_USER.search(message):
        return RunEnd(exit_code, "stopped", message)
    if outcome and outcome["kind"] in OF_ERRORS:
        return RunEnd(exit_code, OF_ERRORS[outcome["kind"]], message)
    if exit_code == Unfinished.exit_code:
        return RunEnd(exit_code, "preempted", message)
    if exit_code in KILLED:
        return RunEnd(exit_code, "lost node", _describe_kill(exit_code, message))
    if outcome is None and exit_code == ConfigError.exit_code:  # an invalid command line
        return RunEnd(exit_code, "input", message)
    return RunEnd(exit_code, "unknown", message or f"exit code {exit_code}")


def _describe_kill(exit_code: int, last_words: str) -> str:
    number = -exit_code if exit_code < 0 else exit_code - 128
    said = f"; its last line: {last_words}" if last_words else ""
    memory = ", as the kernel does when memory runs out" if number == signal.SIGKILL else ""
    return f"killed by {signal.Signals(number).name}{memory}{said}"


def read_outcome(path: str) -> dict[str, Any] | None:
    """Read what a process wrote about its end, with secrets masked.

    None if it wrote nothing, or died while it wrote.
    """
    try:
        found = json.loads(storage.read(path))
    except (FileNotFoundError, ValueError):
        return None
    whole = isinstance(found, dict) and {"kind", "message"} <= found.keys()
    return redact(found) if whole else None
