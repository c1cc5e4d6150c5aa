"""What a cluster has that may cost money or hold a port, and when it ought to be gone."""

import datetime
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

CLUSTER_TAG = "trainrig:cluster"
EXPIRES_TAG = "trainrig:expires"


@dataclass(frozen=True)
class CloudMachine:
    """One thing that stays until somebody ends it: an instance, but also a disk, a process."""

    id: str
    kind: str  # instance, spot request, volume, pod, process, …
    cluster: str
    state: str  # as whoever runs it calls it
    place: str = ""  # region, namespace
    pool: str = ""
    instance: str = ""  # its type, as prices are looked up
    market: str = ""  # spot or on-demand
    expires: str = ""  # as its tag says; empty: it has none

    @property
    def expired(self) -> bool:
        """Whether it ought to be gone. What has no readable time does not expire."""
        until = read_time(self.expires)
        return until is not None and until < datetime.datetime.now(datetime.UTC)

    @property
    def head(self) -> bool:
        """Whether it leads: it starts others, so it is the first to go."""
        return self.pool == "head"

    def __str__(self) -> str:
        """In one line."""
        words = [self.id, self.kind, self.state, self.place, self.instance, self.market]
        until = f"expire{'d' if self.expired else 's'} {self.expires}" if self.expires else ""
        return ", ".join(
            word for word in [*words, self.pool and f"pool {self.pool}", until] if word
        )

    def as_json(self) -> dict[str, Any]:
        """Plain JSON."""
        return asdict(self) | {"expired": self.expired}


class Provider(Protocol):
    """Whoever runs the machines."""

    def machines(self, cluster: str | None) -> Sequence[CloudMachine]:
        """All that is there of that cluster; None: of any of ours.

        Raises ClusterError if any part of the answer is missing: what cannot be read is not zero.
        """

    def end(self, machines: Sequence[CloudMachine]) -> None:
        """Have them ended; returns before they are. Raises ClusterError."""


def read_time(written: str) -> datetime.datetime | None:
    """The time of a tag, in UTC; Google's labels hold neither colons nor capitals."""
    day, _, clock = written.upper().partition("T")
    try:
        return datetime.datetime.fromisoformat(f"{day}T{clock.replace('-', ':')}")
    except ValueError:
        return None
