"""`trainrig cluster down`: over only when every list says that nothing is left.

A list that cannot be read is not an empty one: then nothing is ended on its account, and nothing is
called ended. One empty list is not enough either, as clouds are slow to show what was just started.
"""

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from trainrig.errors import ClusterError, ConfigError
from trainrig.launch.clusters.kinds import OpenCluster
from trainrig.launch.clusters.providers.machine import CloudMachine, Provider
from trainrig.launch.clusters.runs import find_runs
from trainrig.launch.record.known_clusters import forget
from trainrig.launch.record.run_record import Home

Say = Callable[[str], None]


@dataclass(frozen=True)
class DeletionTimeouts:
    """How long to look, in seconds."""

    total: float = 600.0  # then what is left is named, and it has failed
    between: float = 3.0  # between two looks
    settle: float = 5.0  # that nothing must be there for, over two looks


def take_down_cluster(
    cluster: OpenCluster,
    home: Home,
    say: Say,
    timeouts: DeletionTimeouts | None = None,
    ignored: Collection[str] = (),
) -> int:
    """End all machines of `cluster`; how many there were. What the homes `ignored` hold counts not.

    Raises ConfigError while runs are live on it, by `home` or any other that is known to hold
    records of runs on it, or if one of them cannot be read; ClusterError with what is left, or if
    that could not be read.
    """
    before = cluster.provider.machines(cluster.name)
    _refuse_live_runs(cluster, home, ignored)
    for machine in before:
        say(f"ending {machine}")
    if left := end_all(cluster.provider, cluster.name, timeouts or DeletionTimeouts(), say):
        raise ClusterError(f"{cluster.name}: left: {'; '.join(map(str, left))}")
    forget(cluster.name)
    return len(before)


def _refuse_live_runs(cluster: OpenCluster, home: Home, ignored: Collection[str]) -> None:
    live, unread = find_runs(cluster, home, ignored)
    if live:
        named = ", ".join(f"{record.id} ({record.read_state()})" for record in live)
        raise ConfigError(
            f"{cluster.name}: runs are live on it: {named}; stop them first: trainrig stop ID "
            f"--home {live[0].path.rpartition('/runs/')[0]}"
        )
    for path, why in unread.items():
        raise ConfigError(
            f"{cluster.name}: whether runs are live on it is not known: {path} may hold their "
            f"records, and cannot be read ({why}); let it be read, or give --ignore-home {path}"
        )


def end_all(
    provider: Provider, name: str, timeouts: DeletionTimeouts, say: Say
) -> Sequence[CloudMachine]:
    """End what is there of the cluster `name`, and what comes meanwhile; what is left at the end.

    Raises ClusterError if at the end the lists could not be read.
    """
    until = time.monotonic() + timeouts.total
    empty_since: float | None = None
    while True:
        unread = None
        left = list[CloudMachine]()
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
            if now - empty_since >= timeouts.settle:
                return []
        if now >= until:
            if unread:
                raise ClusterError(f"{name}: whether anything is left is not known: {unread}")
            return left
        if unread:
            say(f"trying again: {unread}")
        time.sleep(timeouts.between)
