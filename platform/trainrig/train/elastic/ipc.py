"""Messages between the driver, a rank and its worker agent, except heartbeats.

It imports little: the processes of the driver and of the worker agents do not load torch.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainrig.processes.process_identity import Process

if TYPE_CHECKING:
    from trainrig.train.job import TrainingJob
    from trainrig.train.run.run_folder import TrainingAttempt


@dataclass(frozen=True)
class RankTask:
    """Task that every rank of an attempt receives."""

    job: "TrainingJob"
    attempt: "TrainingAttempt"
    resume_from: str | None


@dataclass(frozen=True)
class RankInfo:
    """Identity and location of a rank, and its worker agent."""

    rank: int
    world: int
    device: int | None  # index of its GPU among those visible to it; None if it has none
    rendezvous: str  # URL of the rendezvous endpoint
    node: str  # node id in Ray
    agent: Process  # the process of its worker agent


@dataclass(frozen=True)
class RankError:
    """Exception that ended a rank."""

    error: bytes  # the pickled exception; the worker agent need not be able to import its class
    line: str  # type and message


@dataclass(frozen=True)
class RankDone:
    """Message that a rank has finished its work."""
