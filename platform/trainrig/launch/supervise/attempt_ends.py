"""Ends of an attempt at a run: causes by who can act on them, limits, and retries.

done           the run is finished
input          the run file, the command line or the output folder is wrong: the user can fix it
data           the files that the run reads are wrong, or a model diverged on them
cluster        machines, network or storage failed, and trainrig's own retries did not help
lost node      the run's processes were killed: out of memory, or together with their machine
lost cluster   the run's cluster is gone, and another one answers at its address
preempted      the machine is being reclaimed; the run saved and ended
stopped        the user stopped the run: it saved and ended, or was killed
out of budget  the run reached its limit of cost
deadline       the run reached its limit of time
unknown        any other failure: a bug, with a traceback

Each cause has its own number of retries. A failure that repeats at the same place would repeat for
ever, so it is not retried, whatever is left. Two failures are the same if their cause, their
message (without the parts that change from try to try) and the progress are equal.
"""

import json
import re
import shlex
import signal
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import model_validator

from trainrig import storage
from trainrig.config import Field, Settings, suggest_choice
from trainrig.errors import (
    ClusterError,
    ClusterLost,
    ClusterReplaced,
    ConfigError,
    DataError,
    Diverged,
    OutputTaken,
    Unfinished,
)
from trainrig.launch.redaction import redact
from trainrig.processes.retry_policy import FailureHistory, GiveUp, compute_back_off, normalise

Cause = Literal[
    "done",
    "input",
    "data",
    "cluster",
    "lost node",
    "lost cluster",
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
    ClusterLost.__name__: "cluster",
    ClusterReplaced.__name__: "lost cluster",
    Unfinished.__name__: "preempted",
}
# The message of a run that found the file `stop` in its folder, or got Ctrl-C in a terminal.
BY_USER = re.compile(r"stopped by the file |^interrupted;")
KILLED = {-signal.SIGKILL, -signal.SIGTERM, -signal.SIGHUP, 128 + signal.SIGKILL}
STATES: dict[Cause, str] = {
    "done": "done",
    "input": "refused",
    "lost cluster": "preempted",
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


Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]

# How often a run is retried after each cause, unless the user sets another number. A failure that
# only the user can fix is not retried, nor is an end that the user requested, nor a lost cluster:
# the run does not belong to the one that took its address. A lost node costs one
# restart, and a preempted run has saved before it ended, so both are retried often. An unknown
# failure may be a race condition: one retry.
RETRIES: dict[Cause, int] = {
    "cluster": 3,
    "lost node": 5,
    "preempted": 100,
    "unknown": 1,
}
NEVER: tuple[Cause, ...] = (
    "done",
    "input",
    "lost cluster",
    "stopped",
    "out of budget",
    "deadline",
)


class Limits(Settings):
    """Bounds of one attempt at a run, including its retries."""

    # USD; None: no limit.
    max_cost: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    # The cost of earlier attempts at the run counts as well.
    deadline: Seconds | None = None  # seconds from submission to the end; None: no limit
    pending: Seconds = 900.0  # seconds from submission to the first heartbeat, before giving up
    grace: Seconds = 120.0  # seconds to save a checkpoint in; a spot machine of AWS also gives 120
    back_off: Seconds = 5.0  # seconds before the first retry; doubled after each without progress
    longest_back_off: Seconds = 300.0  # seconds, at most, before a retry
    retries: dict[str, Annotated[int, Field(ge=0)]] = Field({})  # limit by cause; default: RETRIES
    hardware: str | None = None  # path of a price table; later of its copy in the run's record
    notify: str | None = None  # command to run at the end, without a shell
    notify_seconds: Seconds = 30.0  # seconds until that command is killed

    @model_validator(mode="after")
    def _causes_exist(self) -> Self:
        choices = [cause for cause in CAUSES if cause not in NEVER]
        for cause in self.retries:
            if cause in NEVER:
                raise ValueError(f"retries: '{cause}' is never retried; leave it out")
            if cause not in choices:
                raise ValueError(f"retries: no cause '{cause}'{suggest_choice(cause, choices)}")
        return self

    @model_validator(mode="after")
    def _notify_can_be_split(self) -> Self:
        if self.notify is not None:
            try:
                words = shlex.split(self.notify)
            except ValueError as error:
                raise ValueError(f"notify: {self.notify!r}: {error}") from None
            if not words:
                raise ValueError("notify: no command given; give one, or leave it out")
        return self

    def get_budget(self, cause: Cause) -> int:
        """Return how often a run that ended by `cause` may be retried."""
        return self.retries.get(cause, RETRIES.get(cause, 0))


def build_signature(end: RunEnd) -> tuple[Cause, str]:
    """Return what two ends share if they are the same failure: cause and normalised message."""
    return end.cause, normalise(end.message)


@dataclass
class Retries:
    """The ends of one attempt so far, and the retries that are left."""

    limits: Limits
    _used: dict[Cause, int] = field(default_factory=dict)
    _history: FailureHistory = field(default_factory=FailureHistory)
    _farthest: int = -1
    _fruitless: int = 0  # number of ends in a row without new progress

    def decide_retry(self, end: RunEnd, progress: int) -> float | GiveUp:
        """Return the seconds to wait before a retry after `end`, or GiveUp.

        `progress` is the total of steps, or of files, that the run has finished.
        """
        budget = self.limits.get_budget(end.cause)
        used = self._used.get(end.cause, 0)
        if not budget:
            return GiveUp()
        if self._came_before(end, progress):
            return GiveUp("the same failure occurred twice at the same point")
        if used >= budget:
            return GiveUp(
                f"retried {used} {'time' if used == 1 else 'times'} after '{end.cause}', "
                "which is the limit"
            )
        self._used[end.cause] = used + 1
        self._fruitless = 0 if progress > self._farthest else self._fruitless + 1
        self._farthest = max(self._farthest, progress)
        return compute_back_off(self.limits.back_off, self.limits.longest_back_off, self._fruitless)

    def _came_before(self, end: RunEnd, progress: int) -> bool:
        if end.cause == "preempted":  # a preemption is no failure of the run
            return False
        return self._history.repeats(build_signature(end), progress)
