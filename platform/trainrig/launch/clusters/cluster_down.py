"""Implementation of `trainrig cluster down`, which ends only when no machine is listed any more.

A list that cannot be read does not count as empty: nothing is ended on its account, and the cluster
does not count as gone. One empty list is not enough either, as clouds are slow to show new
machines.
"""

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from trainrig.errors import ClusterError, ConfigError
from trainrig.launch.clusters.cluster_kinds import OpenCluster
from trainrig.launch.clusters.cluster_status import find_runs
from trainrig.launch.clusters.machine_providers import CloudMachine, Provider
from trainrig.launch.supervise.known_clusters import forget
from trainrig.launch.supervise.run_record import Home

Say = Callable[[str], None]


@dataclass(frozen=True)
class DeletionTimeouts:
    """Time limits of taking a cluster down, in seconds."""

    total: float = 600.0  # then the command fails and names the remaining machines
    between: float = 3.0  # between two lists
    settle: float = 5.0  # during which the lists must stay empty


def take_down_cluster(
    cluster: OpenCluster,
    home: Home,
    say: Say,
    timeouts: DeletionTimeouts | None = None,
    ignored: Collection[str] = (),
) -> int:
    """End all machines of `cluster` and return their number.

    The homes in `ignored` are not searched for live runs. Raises ConfigError while runs are live on
    the cluster, by any home known to hold records of its runs, or if such a home cannot be read.
    Raises ClusterError if machines are left, or if the lists cannot be read.
    """
    before = cluster.provider.machines(cluster.name)
    _refuse_live_runs(cluster, home, ignored)
    for machine in before:
        say(f"ending {machine}")
    if left := end_all(cluster.provider, cluster.name, timeouts or DeletionTimeouts(), say):
        raise ClusterError(
            f"{cluster.name}: these machines are left: {'; '.join(map(str, left))}; run the "
            "same command again"
        )
    forget(cluster.name)
    return len(before)


def _refuse_live_runs(cluster: OpenCluster, home: Home, ignored: Collection[str]) -> None:
    live, unread = find_runs(cluster, home, ignored)
    if live:
        named = ", ".join(f"{record.id} ({record.read_state()})" for record in live)
        raise ConfigError(
            f"{cluster.name}: runs are live on it: {named}; stop them first: trainrig "
            f"stop ID --home {live[0].path.rpartition('/runs/')[0]}"
        )
    for path, why in unread.items():
        raise ConfigError(
            f"{cluster.name}: it is unknown whether runs are live on it: {path} may hold "
            f"their records, but cannot be read ({why}); make it readable, or give "
            f"--ignore-home {path}"
        )


def end_all(
    provider: Provider, name: str, timeouts: DeletionTimeouts, say: Say
) -> Sequence[CloudMachine]:
    """End the machines of the cluster `name`, and new ones, and return those left at the end.

    Raises ClusterError if the lists cannot be read at the end.
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
                raise ClusterError(f"{name}: it is unknown whether machines are left: {unread}")
            return left
        if unread:
            say(f"trying again: {unread}")
        time.sleep(timeouts.between)
