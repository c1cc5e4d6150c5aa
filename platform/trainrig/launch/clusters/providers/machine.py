"""Machines and other parts of a cluster that may cost money or hold a port."""

import datetime
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

CLUSTER_TAG = "trainrig:cluster"
EXPIRES_TAG = "trainrig:expires"


@dataclass(frozen=True)
class CloudMachine:
    """A resource that stays until it is ended: an instance, a disk, a pod or a process."""

    id: str
    kind: str  # instance, spot request, volume, pod, process, …
    cluster: str
    state: str  # state in the provider's words
    place: str = ""  # region, zone or namespace
    pool: str = ""
    instance: str = ""  # type, by which prices are found
    market: str = ""  # spot or on-demand
    expires: str = ""  # time in its tag; empty: no tag

    @property
    def expired(self) -> bool:
        """True if the expiry time has passed; false without a readable time."""
        until = read_time(self.expires)
        return until is not None and until < datetime.datetime.now(datetime.UTC)

    @property
    def head(self) -> bool:
        """True for the head, which starts other machines, so it is ended first."""
        return self.pool == "head"

    def __str__(self) -> str:
        """Return a description in one line."""
        words = [self.id, self.kind, self.state, self.place, self.instance, self.market]
        until = f"expire{'d' if self.expired else 's'} {self.expires}" if self.expires else ""
        return ", ".join(
            word for word in [*words, self.pool and f"pool {self.pool}", until] if word
        )

    def to_json(self) -> dict[str, Any]:
        """Return the machine as a JSON object."""
        return asdict(self) | {"expired": self.expired}


class Provider(Protocol):
    """Interface to the service that runs the machines."""

    def machines(self, cluster: str | None) -> Sequence[CloudMachine]:
        """List all machines of that cluster; None: of any of trainrig's clusters.

        Raises ClusterError if any part of the answer is missing, as an unread list is not empty.
        """

    def end(self, machines: Sequence[CloudMachine]) -> None:
        """Request the end of machines, without waiting for it. Raises ClusterError."""


def read_time(written: str) -> datetime.datetime | None:
    """Parse the time of a tag, in UTC; Google's labels allow neither colons nor capitals."""
    day, _, clock = written.upper().partition("T")
    try:
        return datetime.datetime.fromisoformat(f"{day}T{clock.replace('-', ':')}")
    except ValueError:
        return None
