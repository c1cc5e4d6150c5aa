"""Messages that the driver of a run and its worker agents exchange through the coordinator.

Imports no torch: neither does the worker agent's process.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from trainrig.processes.heartbeats import Heartbeat
from trainrig.train.elastic.ipc import RankError


class Command(IntEnum):
    """What the driver has to say to the ranks of an attempt."""

    TRAIN = 0
    STOP = 1  # when all agree on a step, and saved
    END = 2  # at once: the attempt has failed


@dataclass(frozen=True)
class Assignment:
    """What the rank of each worker agent of a worker group is to do next."""

    group: int  # the attempt for which the worker agents were started
    attempt: int
    work: bytes  # pickled
    rendezvous: str  # the URL at which the ranks meet


@dataclass(frozen=True)
class RankExit:
    """How a rank ended before its work was done. Its worker agent stands by for an assignment."""

    rank: int
    node: str  # as the supervisor calls it
    reason: str | RankError  # its process died so, or it raised this
    # at which the ranks of another attempt could meet, from the worker agent of rank 0
    rendezvous: str


@dataclass(frozen=True)
class RankReports:
    """What the driver finds at the coordinator: the newest of each rank."""

    heartbeats: Mapping[int, Heartbeat]
    exits: Mapping[int, RankExit]


@dataclass(frozen=True)
class WorkerGroupSpec:
    """What Ray is told of an attempt's workers."""

    name: str  # one that was used before would make Ray resume by its own record
    workers: int
    gpus: bool
    environment: Mapping[str, str]
    avoid: frozenset[str] = frozenset()  # nodes on which none may be
    # Workers of the groups that should be on one node, each made of those before it.
    nested: tuple[int, ...] = ()
