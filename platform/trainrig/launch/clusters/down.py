"""`trainrig cluster down`: over only when every list says that nothing is left.

A list that cannot be read is not an empty one: then nothing is ended on its account, and nothing is
called ended. One empty list is not enough either, as clouds are slow to show what was just started.
"""

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trainrig.errors import ClusterError, ConfigError
from trainrig.launch.clusters.kinds import Cluster
from trainrig.launch.clusters.known import addresses, reached
from trainrig.launch.clusters.live_runs import live_runs
from trainrig.launch.clusters.machine import Machine, Provider
from trainrig.launch.record import Home

Say = Callable[[str], None]


@dataclass(frozen=True)
class Patience:
    """How long to look, in seconds."""

    total: float = 600.0  # then what is left is named, and it has failed
    between: float = 3.0  # between two looks
    settle: float = 5.0  # that nothing must be there for, over two looks


def down(cluster: Cluster, home: Home, say: Say, patience: Patience | None = None) -> int:
    """End all machines of `cluster`; how many there were.

    Raises ConfigError while runs are live on it, ClusterError with what is left, or if that could
    not be read.
    """
    if live := live_runs(home, cluster.name, addresses(cluster.name)):
        named = ", ".join(f"{record.id} ({record.state()})" for record in live)
        raise ConfigError(
            f"{cluster.name}: runs are live on it: {named}; stop them first: trainrig stop ID"
        )
    before = cluster.provider.machines(cluster.name)
    for machine in before:
        say(f"ending {machine}")
    if left := end_all(cluster.provider, cluster.name, patience or Patience(), say):
        raise ClusterError(f"{cluster.name}: left: {'; '.join(map(str, left))}")
    if folder := reached(cluster.name).get("folder"):
        shutil.rmtree(folder, ignore_errors=True)
    return len(before)


def end_all(provider: Provider, name: str, patience: Patience, say: Say) -> Sequence[Machine]:
    """End what is there of the cluster `name`, and what comes meanwhile; what is left at the end.

    Raises ClusterError if at the end the lists could not be read.
    """
    until = time.monotonic() + patience.total
    empty_since: float | None = None
    while True:
        unread, left = None, list[Machine]()
        try:
            left = list(provider.machines(name))
            if left:
                provider.end(left)
        except ClusterError as error:
            unread = error
        now = time.monotonic()
        if unread or left:
            empty_since = None
        else:
            empty_since = now if empty_since is None else empty_since
            if now - empty_since >= patience.settle:
                return []
        if now >= until:
            if unread:
                raise ClusterError(f"{name}: whether anything is left is not known: {unread}")
            return left
        if unread:
            say(f"trying again: {unread}")
        time.sleep(patience.between)
