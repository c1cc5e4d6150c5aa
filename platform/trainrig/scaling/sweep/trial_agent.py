"""What runs in an actor of Tune's: it keeps the process of a trial, and carries its reports.

A trial has a process of its own, forked from one that has made all imports: it begins in
milliseconds, and what it leaves behind ends with it. Nothing here imports torch, or Ray.
"""

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from trainrig.processes.fork_server import ForkedProcess, ForkServer, ProcessDied

WORK = "trainrig.scaling.sweep.trial_process"
MODULES = (WORK, "torch._dynamo", "boto3", "tensorboardX")
Result = Mapping[str, Any]


@dataclass(frozen=True)
class Said:
    """What a trial reports on its way; it waits for an answer."""

    result: Result


@dataclass(frozen=True)
class TrialEnded:
    """What a trial reports at its end."""

    result: Result


class TrialDied(Exception):
    """The process of a trial ended without a last word."""


def keep(
    address: str | None, work: bytes, config: Result, report: Callable[[Result], None]
) -> None:
    """Have a process do the trial of the pickled `work` that `config` names; `report` all it says.

    `address`: of this node's fork server, if it has one. The process ends with this call, however
    that does. Raises TrialDied.
    """
    try:
        with contextlib.closing(_forked(address, (work, dict(config)))) as process:
            while not isinstance(said := process.receive(), TrialEnded):
                report(said.result)
                process.send(None)
            report(said.result)
    except ProcessDied as died:
        raise TrialDied(str(died)) from None


def _forked(address: str | None, given: tuple[bytes, Result]) -> ForkedProcess:
    """By the server at `address`; by one of our own, if there is none or it is dead."""
    with contextlib.suppress(ProcessDied):
        if address:
            return ForkedProcess(address, f"{WORK}:main", given)
    global _own
    _own = _own or ForkServer(*MODULES)
    return ForkedProcess(_own.address(), f"{WORK}:main", given)


_own: ForkServer | None = None  # for as long as this process lives
