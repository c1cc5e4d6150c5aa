"""Implementation of `trainrig cluster status`: machines, hourly cost and live runs."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trainrig import hardware
from trainrig.hardware import Hardware
from trainrig.launch.check.cluster import LAPTOP
from trainrig.launch.clusters.kinds import OpenCluster
from trainrig.launch.clusters.providers.machine import CloudMachine
from trainrig.launch.clusters.runs import find_runs
from trainrig.launch.record.known_clusters import read_endpoint
from trainrig.launch.record.run_record import Home

NODES = {"instance", "pod", "node"}  # kinds that count as nodes; disks and requests belong to one


@dataclass(frozen=True)
class ClusterStatus:
    """State of a cluster at one moment."""

    name: str
    machines: Sequence[CloudMachine]
    usd: float | None  # hourly cost of its nodes; None: a price is missing
    runs: Mapping[str, str]  # states of live runs by id
    how: Mapping[str, str]  # addresses by which it is reached
    unread: Mapping[str, str]  # homes that may hold runs, with the reason why they cannot be read

    @property
    def nodes(self) -> Mapping[str, int]:
        """Number of nodes by pool."""
        return Counter(m.pool or "?" for m in self.machines if m.kind in NODES)

    @property
    def expires(self) -> str | None:
        """The earliest expiry time of its machines; None: no machine has one."""
        return min((m.expires for m in self.machines if m.expires), default=None)

    def to_json(self) -> dict[str, Any]:
        """Return the status as a JSON object."""
        return {
            "name": self.name,
            "nodes": dict(self.nodes),
            "usd_an_hour": self.usd,
            "runs": dict(self.runs),
            "unread_homes": dict(self.unread),
            "expires": self.expires,
            "expired": any(machine.expired for machine in self.machines),
            "reached": dict(self.how),
            "machines": [machine.to_json() for machine in self.machines],
        }

    def format_lines(self) -> list[str]:
        """Return the status as lines of text."""
        if not self.machines:
            return [f"{self.name}: no machines"]
        nodes = ", ".join(f"{count} {pool}" for pool, count in sorted(self.nodes.items()))
        price = "price unknown" if self.usd is None else f"{self.usd:,.2f} USD an hour"
        lines = [f"{self.name}: {nodes or 'no nodes'}; {price}"]
        lines += [f"{what}: {where}" for what, where in self.how.items() if what != "folder"]
        if self.expires:
            over = " (already past)" if any(machine.expired for machine in self.machines) else ""
            lines.append(f"expires: {self.expires}{over}")
        lines += [f"run: {name}: {state}" for name, state in self.runs.items()]
        lines += [f"runs in {home}: unknown: {why}" for home, why in self.unread.items()]
        return lines


def read_cluster_status(
    cluster: OpenCluster, home: Home, table_of_hardware: str | None = None
) -> ClusterStatus:
    """Read the status of a cluster, with prices from a hardware table (None: trainrig's own).

    Raises ClusterError if the machines cannot be listed, ConfigError for an invalid table.
    """
    prices = hardware.load(table_of_hardware)
    machines = [
        _fill_from_pool(cluster, machine) for machine in cluster.provider.machines(cluster.name)
    ]
    how = read_endpoint(cluster.name) if machines else {}
    live, unread = find_runs(cluster, home)
    runs = {record.id: record.read_state() for record in live}
    usd = 0.0 if cluster.kind == LAPTOP else _sum_usd(machines, prices)
    return ClusterStatus(cluster.name, machines, usd, runs, how, unread)


def _fill_from_pool(cluster: OpenCluster, machine: CloudMachine) -> CloudMachine:
    """Return the machine with the instance and market of its pool, if the provider has none."""
    pool = next((pool for pool in cluster.checked.pools if pool.name == machine.pool), None)
    if pool is None or machine.instance:
        return machine
    return replace(machine, instance=pool.instance, market=machine.market or pool.market)


def _sum_usd(machines: Sequence[CloudMachine], known: Hardware) -> float | None:
    total = 0.0
    for machine in machines:
        if machine.kind not in NODES:
            continue
        price = known.find_price(machine.instance, machine.market)
        if price is None:
            return None
        total += price.usd
    return round(total, 4)
