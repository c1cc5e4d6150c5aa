"""Messages that a run's driver and its worker agents exchange through the coordinator.

The module does not import torch, as the worker agents' processes do not load it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from trainrig.processes.heartbeats import Heartbeat
from trainrig.train.elastic.ipc import RankError


class Command(IntEnum):
    """Command of the driver to the ranks of an attempt."""

    TRAIN = 0
    STOP = 1  # save and stop, at a step that all ranks agree on
    END = 2  # exit at once: the attempt has failed


@dataclass(frozen=True)
class Assignment:
    """Next task for the rank of each worker agent of a worker group."""

    group: int  # number of the attempt that the worker agents were started for
    attempt: int
    work: bytes  # a pickled RankTask
    rendezvous: str  # URL of the rendezvous endpoint


@dataclass(frozen=True)
class RankExit:
    """Report that a rank ended before its work was done; its agent waits for an assignment."""

    rank: int
    node: str  # node id in Ray
    reason: str | RankError  # how its process died, or the exception that it raised
    # rendezvous URL for the next attempt, from the agent of rank 0; "" from the others
    rendezvous: str


@dataclass(frozen=True)
class RankReports:
    """Newest heartbeat and exit of each rank, as stored at the coordinator."""

    heartbeats: Mapping[int, Heartbeat]
    exits: Mapping[int, RankExit]


@dataclass(frozen=True)
class WorkerGroupSpec:
    """Parameters of a worker group for Ray Train."""

    name: str  # must be new: for a known name, Ray Train would restore its own state
    workers: int
    gpus: bool
    environment: Mapping[str, str]
    avoid: frozenset[str] = frozenset()  # node ids on which no worker may run
    # Sizes of groups of ranks to place on one node; each size is a multiple of the one before.
    nested: tuple[int, ...] = ()
