"""Messages between the driver, a rank and its worker agent, besides heartbeats.

Imports little: the processes of the driver and of the worker agent have no torch.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainrig.processes.process_identity import Process

if TYPE_CHECKING:
    from trainrig.train.job import TrainingJob
    from trainrig.train.run.run_folder import TrainingAttempt


@dataclass(frozen=True)
class RankTask:
    """What every rank of an attempt is given."""

    job: "TrainingJob"
    attempt: "TrainingAttempt"
    resume_from: str | None


@dataclass(frozen=True)
class RankInfo:
    """Where a rank is, and who keeps it."""

    rank: int
    world: int
    device: int | None  # its GPU, among those that it can see; None: it was given none
    rendezvous: str  # the URL at which the ranks meet
    node: str  # as the supervisor calls it
    agent: Process  # its worker agent


@dataclass(frozen=True)
class RankError:
    """What a rank ended with."""

    error: bytes  # pickled by itself: its worker agent need not import what it is made of
    line: str  # what it says


@dataclass(frozen=True)
class RankDone:
    """A rank came to its end."""
