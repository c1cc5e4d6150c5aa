"""What runs in an actor of Tune's: it keeps the process of a trial, and carries its reports.

A trial has a process of its own, forked from one that has made all imports: it begins in
milliseconds, and what it leaves behind ends with it. Nothing here imports torch, or Ray.
"""

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from trainrig.processes.fork_server import (
    ForkedProcess,
    ForkServer,
    ProcessDied,
    ServerAddress,
)
from trainrig.processes.retry_policy import GiveUp
from trainrig.scaling.sweep.trial_failures import FailureRecord, TrialFailure

WORK = "trainrig.scaling.sweep.trial_process"
MODULES = (WORK, "torch._dynamo", "boto3", "tensorboardX")
Result = Mapping[str, Any]
GAVE_UP = {"loss": float("inf"), "percent": 100.0}  # what a trial that is over has at least


@dataclass(frozen=True)
class Said:
    """What a trial reports on its way; it waits for an answer."""

    result: Result


@dataclass(frozen=True)
class TrialEnded:
    """What a trial reports at its end."""

    result: Result


class TrialFailed(Exception):
    """A trial did not come to its end, and is to be started again."""


def keep(
    address: ServerAddress | None,
    work: bytes,
    config: Result,
    report: Callable[[Result], None],
    record: FailureRecord,
) -> None:
    """Have a process do the trial of the pickled `work` that `config` names; `report` all it says.

    `address`: of this node's fork server, if it has one. The process ends with this call, however
    that does. A failure is put on `record`; one that would come again is the trial's result, under
    "failed". Raises TrialFailed after any other, once it was backed off from.
    """
    last: dict[str, Any] = {}

    def tell(result: Result) -> None:
        last.update(result)
        report(result)

    try:
        with contextlib.closing(_fork_agent(address, (work, dict(config)))) as process:
            failure = _relay(process, tell)
    except ProcessDied as died:
        failure = TrialFailure(f"its process died: {died}")
    if failure is None:
        return
    verdict = record.decide_retry(failure)
    if isinstance(verdict, GiveUp):
        report({**GAVE_UP, **last, "failed": verdict.reason})
        return
    time.sleep(verdict)
    raise TrialFailed(failure.problem)


def _relay(process: ForkedProcess, report: Callable[[Result], None]) -> TrialFailure | None:
    """Report what the process of a trial says, to its last word; that, if it failed."""
    while not isinstance(said := process.receive(), TrialEnded | TrialFailure):
        report(said.result)
        process.send(None)
    if isinstance(said, TrialFailure):
        return said
    report(said.result)
    return None


def _fork_agent(address: ServerAddress | None, given: tuple[bytes, Result]) -> ForkedProcess:
    """By the server at `address`; by one of our own, if there is none or it is dead."""
    with contextlib.suppress(ProcessDied):
        if address:
            return ForkedProcess(address, f"{WORK}:main", given)
    global _own
    _own = _own or ForkServer(*MODULES)
    return ForkedProcess(_own.get_address(), f"{WORK}:main", given)


_own: ForkServer | None = None  # for as long as this process lives
