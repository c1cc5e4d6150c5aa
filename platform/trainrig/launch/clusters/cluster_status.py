"""Implementation of `trainrig cluster status` and `cluster leaks`: machines, cost, live runs.

`leaks` lists machines and ends none.

The user who takes a cluster down may have another TRAINRIG_HOME than the user who submitted to it.
So live runs are searched in three kinds of homes: that of this shell, those used for submissions
from this machine, and those that the cluster's file gives its nodes.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trainrig import hardware, storage
from trainrig.errors import DataError, TrainrigError
from trainrig.hardware import INSTANCE_LABEL, MARKET_LABEL, Hardware
from trainrig.launch.clusters.cluster_file import KUBERNETES, LAPTOP, find_pool_labels
from trainrig.launch.clusters.cluster_kinds import OpenCluster
from trainrig.launch.clusters.ec2_machines import EC2
from trainrig.launch.clusters.local_processes import Processes
from trainrig.launch.clusters.machine_providers import CloudMachine, Compute, Kubernetes, Provider
from trainrig.launch.supervise import known_clusters
from trainrig.launch.supervise.run_record import Home, RunRecord

HOME = "TRAINRIG_HOME"
# matches options of docker and lines of shell scripts
SET = re.compile(HOME + r"""=["']?([^\s"';]+)""")


def find_runs(
    cluster: OpenCluster, home: Home, ignored: Collection[str] = ()
) -> tuple[list[RunRecord], dict[str, str]]:
    """Return the live runs on `cluster`, and the unreadable homes with the reason.

    The homes in `ignored` are skipped.
    """
    named = [Home.choose(path).path for path in _find_homes(cluster.data) if "$" not in path]
    noted = known_clusters.read_noted_homes(cluster.name)
    left_out = {Home.choose(path).path for path in ignored}
    live: list[RunRecord] = []
    unread: dict[str, str] = {}
    for path in dict.fromkeys([home.path, *noted, *named]):
        if path in left_out:
            continue
        try:
            seen_here = storage.is_remote(path) or Path(path).is_dir()
            if path in (*noted, *named) and not seen_here:
                raise FileNotFoundError(2, "no such folder on this machine", path)
            live += known_clusters.list_live_runs(
                Home(path), cluster.name, known_clusters.list_addresses(cluster.name)
            )
        except DataError as error:  # the bucket does not exist
            if path not in named:  # the bucket that the file names may not have been created yet
                unread[path] = str(error)
        except TrainrigError as error:
            unread[path] = str(error)
        except OSError as error:
            unread[path] = error.strerror or str(error)
    return live, unread


def _find_homes(value: Any) -> Iterator[str]:
    """Yield every home that a cluster's file sets for its nodes."""
    if isinstance(value, str):
        yield from SET.findall(value)
    elif isinstance(value, list):
        for item in value:
            yield from _find_homes(item)
    elif isinstance(value, Mapping):
        if value.get("name") == HOME and isinstance(value.get("value"), str):
            yield value["value"]
        for item in value.values():
            yield from _find_homes(item)


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
    how = known_clusters.read_endpoint(cluster.name) if machines else {}
    live, unread = find_runs(cluster, home)
    runs = {record.id: record.read_state() for record in live}
    usd = 0.0 if cluster.kind == LAPTOP else _sum_usd(machines, prices)
    return ClusterStatus(cluster.name, machines, usd, runs, how, unread)


def _fill_from_pool(cluster: OpenCluster, machine: CloudMachine) -> CloudMachine:
    """Return the machine with the instance and market of its pool, if the provider has none."""
    labels = find_pool_labels(cluster.data, cluster.kind).get(machine.pool)
    if labels is None or machine.instance:
        return machine
    instance = str(labels.get(INSTANCE_LABEL, ""))
    market = machine.market or str(labels.get(MARKET_LABEL, ""))
    return replace(machine, instance=instance, market=market)


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


def find_leaks(
    cluster: OpenCluster, regions: Sequence[str] | None, all_of_ours: bool
) -> list[CloudMachine]:
    """List the machines of `cluster`, or with `all_of_ours` of all clusters of that account.

    All regions (or those in `regions`), namespaces or zones are searched. Expired machines come
    first. Raises ClusterError if any of them cannot be read.
    """
    found = _make_wide_provider(cluster, regions).machines(None if all_of_ours else cluster.name)
    return sorted(found, key=lambda machine: (not machine.expired, machine.place, machine.id))


def _make_wide_provider(cluster: OpenCluster, regions: Sequence[str] | None) -> Provider:
    if cluster.kind == KUBERNETES:
        return Kubernetes(None)
    if cluster.kind == LAPTOP:
        return Processes()
    if cluster.kind == "gcp":
        return Compute(str(cluster.data["provider"]["project_id"]))
    return EC2(regions)
