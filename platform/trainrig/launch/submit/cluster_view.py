"""State of a cluster as a submitter can see it: versions, nodes, capacity."""

import base64
import json
import platform
import secrets
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from trainrig.config import ResourceRequest
from trainrig.hardware import INSTANCE_LABEL, POOL_LABEL, Hardware
from trainrig.launch.ray_jobs import ClusterNode, RayJobs
from trainrig.launch.spot.drain import is_own_address
from trainrig.ray_runtime import ray_pools
from trainrig.ray_runtime.ray_pools import NodePool, count_places

CLUSTER = "trainrig.io/cluster"  # label with the name of the cluster
ASK_SECONDS = 60.0  # seconds for the cluster to report what its autoscaler may start
ANSWER = "trainrig-pools: "
ASK = f"""
import ray
ray.init(address="auto", log_to_driver=False, logging_level="error")
print({ANSWER!r} + json.dumps(read_pools()))
"""

Verdict = Literal["ok", "warning", "problem", "unknown"]


@dataclass(frozen=True)
class ClusterView:
    """State of a cluster at one moment."""

    address: str
    ray: str
    python: str
    nodes: Sequence[ClusterNode]
    pools: Sequence[NodePool] | None  # None: unknown; (): no autoscaler

    @property
    def here(self) -> bool:
        """True if all nodes are this machine, so that they see its disks."""
        return bool(self.nodes) and all(is_own_address(node.address) for node in self.nodes)

    @property
    def name(self) -> str:
        """Name with which `trainrig cluster up` labelled the head; empty if it was not used."""
        heads = [node for node in self.nodes if node.head]
        return heads[0].labels.get(CLUSTER, "") if heads else ""

    @property
    def may_grow(self) -> bool:
        """True if an autoscaler may add nodes: not for a Ray started by hand on this machine."""
        return bool(self.name) or not self.here

    def describe(self) -> str:
        """Return a summary of the live nodes: how many, with how many CPUs and GPUs."""
        count = len(self.nodes)
        gpus = self._sum_live("GPU")
        having = f"{self._sum_live('CPU'):g} CPUs" + (f", {gpus:g} GPUs" if gpus else "")
        return f"{count} {'node' if count == 1 else 'nodes'}, {having}"

    def find_version_problem(self) -> str | None:
        """Return why a driver of ours cannot use the cluster's versions; None if it can.

        Ray's versions must be equal, as its processes cannot talk to another version. Python's may
        differ in the patch version.
        """
        ours = metadata.version("ray")
        python = platform.python_version()
        wrong = []
        if self.ray != ours:
            wrong.append(
                f"the cluster has Ray {self.ray}, but this machine has {ours}; run `pip "
                f"install 'ray[data,default,train,tune]=={self.ray}'` here, or install "
                f"{ours} on the cluster"
            )
        if _parse_minor(self.python) != _parse_minor(python):
            wrong.append(
                f"the cluster has Python {self.python}, but this machine has {python}; "
                f"submit from Python {_parse_minor(self.python)}, or install "
                f"{_parse_minor(python)} on the cluster"
            )
        return "; ".join(wrong) or None

    def check_capacity(self, asked: ResourceRequest) -> tuple[Verdict, str]:
        """Check whether the cluster has, or may grow to have, the workers that a run requires."""
        if asked.least == 0 or not asked.each:
            return "ok", "no workers: the run needs only its process on the head"
        live = self.count_live_places(asked)
        if live >= asked.least:
            return "ok", f"{asked}: {live} fit now"
        if self.pools is None:
            return "unknown", (
                f"{asked}: {live} fit now; the cluster does not report which nodes may be added"
            )
        nodes, pools = self._find_meant(asked)
        head = sum(count_places(node.resources, asked.each) for node in nodes if node.head)
        later = head + sum(pool.most * count_places(pool.resources, asked.each) for pool in pools)
        if (later := max(live, later)) >= asked.least:
            grown = "; ".join(map(str, self.pools))
            return (
                "ok",
                f"{asked}: {live} fit now, {later} with the nodes that may be added ({grown})",
            )
        return "problem", f"{asked}, but {self._explain_lack(asked, later)}"

    def count_live_places(self, asked: ResourceRequest) -> int:
        """Return how many workers would fit on the live nodes if these were otherwise idle."""
        if not asked.each:
            return asked.most
        return sum(count_places(node.resources, asked.each) for node in self._find_meant(asked)[0])

    def _find_meant(self, asked: ResourceRequest) -> tuple[list[ClusterNode], list[NodePool]]:
        """Return the nodes and pools for such workers: those with the label of the pool, if any."""
        nodes = list(self.nodes)
        pools = list(self.pools or ())
        meant = [n for n in nodes if n.labels.get(POOL_LABEL) == asked.pool]
        coming = [p for p in pools if p.labels.get(POOL_LABEL) == asked.pool]
        return (meant, coming) if asked.pool and (meant or coming) else (nodes, pools)

    def list_resources(self) -> list[Mapping[str, float]]:
        """Return the resources of each live node, and of one node of each pool."""
        return [*(n.resources for n in self.nodes), *(p.resources for p in self.pools or ())]

    def _explain_lack(self, asked: ResourceRequest, capacity: int) -> str:
        if asked.gpus and not any(resources.get("GPU", 0) for resources in self.list_resources()):
            pools = "; ".join(map(str, self.pools or ())) or "the cluster has no pools"
            return (
                f"no node and no pool has GPUs ({pools}); set {asked.key} = 0, or add a "
                "pool with GPUs to the cluster file"
            )
        fewer = f"set {asked.key} = {capacity} or fewer" if capacity else "ask for smaller workers"
        return f"the cluster has space for at most {capacity}; {fewer}, or let it have more nodes"

    def find_device(self, known: Hardware) -> str | None:
        """Return the hardware table's name of the device that training would run on; None: unknown.

        The devices are those of nodes and pools with an instance label, GPUs first.
        """
        instance = self._find_instance(known)
        return known.instances[instance].device if instance else None

    def compute_spot_share(self, known: Hardware) -> float | None:
        """Return the spot price of the cluster's instances as a share of their on-demand price."""
        instance = self._find_instance(known)
        if instance is None:
            return None
        offer = known.instances[instance]
        return offer.spot_usd / offer.usd if offer.spot_usd else None

    def list_unpriced_nodes(self, known: Hardware) -> list[str]:
        """Return the names of the instances without any price, sorted."""
        offered = [n.labels for n in self.nodes] + [p.labels for p in self.pools or ()]
        names = {labels.get(INSTANCE_LABEL, "") for labels in offered}
        missing = {name for name in names if known.find_price(name, "on-demand") is None}
        return sorted(
            f"'{name}'" if name else f"nodes without {INSTANCE_LABEL}" for name in missing
        )

    def _find_instance(self, known: Hardware) -> str | None:
        offered = [(node.labels, node.resources) for node in self.nodes if not node.head]
        offered += [(pool.labels, pool.resources) for pool in self.pools or ()]
        offered.sort(key=lambda offer: -offer[1].get("GPU", 0))
        names = [labels.get(INSTANCE_LABEL, "") for labels, _ in offered]
        return next((name for name in names if name in known.instances), None)

    def _sum_live(self, resource: str) -> float:
        return sum(node.resources.get(resource, 0) for node in self.nodes)


def look(jobs: RayJobs) -> ClusterView:
    """Return the state of the cluster behind `jobs`, without its pools. Raises ClusterError."""
    return ClusterView(jobs.address, *jobs.fetch_versions(), jobs.fetch_nodes(), None)


def ask_pools(jobs: RayJobs) -> Sequence[NodePool] | None:
    """Return the pools that the cluster's autoscaler may start; None: no answer.

    The autoscaler's file is on the head, so a job reads it there. The job carries its own code on
    its command line; nothing is uploaded. Raises ClusterError.
    """
    text = Path(ray_pools.__file__).read_text() + ASK
    packed = base64.b64encode(zlib.compress(text.encode(), 9)).decode()
    unpack = f"import base64,zlib;exec(zlib.decompress(base64.b64decode('{packed}')))"
    name = f"trainrig-pools-{secrets.token_hex(4)}"
    jobs.submit(name, f'python -c "{unpack}"', {}, {})
    until = time.monotonic() + ASK_SECONDS
    while (job := jobs.fetch_job(name)) and not job.over:
        if time.monotonic() > until:
            jobs.stop(name)
            return None
        time.sleep(0.2)
    found = [line for line in jobs.fetch_output(name).splitlines() if line.startswith(ANSWER)]
    answer = json.loads(found[-1].removeprefix(ANSWER)) if found else None
    return None if answer is None else [NodePool(**pool) for pool in answer]


def _parse_minor(version: str) -> str:
    return ".".join(version.split(".")[:2])
