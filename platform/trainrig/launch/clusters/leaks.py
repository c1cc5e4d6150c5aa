"""Implementation of `trainrig cluster leaks`, which lists machines and ends none."""

from collections.abc import Sequence

from trainrig.launch.check.cluster import KUBERNETES, LAPTOP
from trainrig.launch.clusters.kinds import OpenCluster
from trainrig.launch.clusters.providers.compute_engine import Compute
from trainrig.launch.clusters.providers.ec2 import EC2
from trainrig.launch.clusters.providers.kubernetes import Kubernetes
from trainrig.launch.clusters.providers.local_processes import Processes
from trainrig.launch.clusters.providers.machine import CloudMachine, Provider


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
