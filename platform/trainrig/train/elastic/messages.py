"""What the driver of a run and the keepers of its ranks leave for each other at the post office.

Imports no torch: neither does the keeper's process.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from trainrig.processes.heartbeats import Beat
from trainrig.train.elastic.ipc import Raised


class Word(IntEnum):
    """What the driver has to say to the ranks of an attempt."""

    TRAIN = 0
    STOP = 1  # when all agree on a step, and saved
    END = 2  # at once: the attempt has failed


@dataclass(frozen=True)
class Order:
    """What the rank of each keeper of a crew is to do next."""

    crew: int  # the attempt for which the keepers were started
    attempt: int
    work: bytes  # pickled
    meeting: str  # the URL at which the ranks meet


@dataclass(frozen=True)
class End:
    """How a rank ended before its work was done. Its keeper stands by for an order."""

    rank: int
    node: str  # as the supervisor calls it
    how: str | Raised  # its process died so, or it raised this
    meeting: str  # at which the ranks of another attempt could meet, from the keeper of rank 0


@dataclass(frozen=True)
class Seen:
    """What the driver finds at the post office: the newest of each rank."""

    beats: Mapping[int, Beat]
    ends: Mapping[int, End]


@dataclass(frozen=True)
class Group:
    """What Ray is told of an attempt's workers."""

    name: str  # one that was used before would make Ray resume by its own record
    workers: int
    gpus: bool
    environment: Mapping[str, str]
