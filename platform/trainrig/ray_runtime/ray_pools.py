"""Capacity of a cluster: its live nodes, and the node pools that its autoscaler may start.

Ray's autoscaler has no API for the nodes that it may start, so its configuration file is read on
the head node. A label of each node names its pool. A cluster without labels works as one pool.
"""

import functools
import json
import math
import os
import re
import ssl
import time
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

# As in config/resource_request.py and hardware.py: a head runs this file alone, so it imports
# nothing of trainrig.
CPU_POOL = "cpu"
POOL_LABEL = "trainrig.io/pool"
NODE_LABEL = "ray.io/node-id"  # Ray gives each node this label
# Ray gives the head node this resource. An actor without required resources may be placed on any
# node. It would die with that node, or prevent the node's removal.
ON_HEAD = {"node:__internal_head__": 0.001}
# Folder in each pod with its namespace, its token and the certificate of Kubernetes.
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
ASKED = 60.0  # time limit for the head's answer, in s
STATE_SECONDS = 5  # time limit for the answer of Ray's State API, in s
MOST_NODES = 10_000  # nodes that the State API lists at most
MOST_TASKS = 1_000  # tasks of one state that it lists at most
WAITING = "PENDING_NODE_ASSIGNMENT"  # state of a task for which no node has space

Need = Mapping[str, float]
"""Ray resources that one worker takes, such as `{"CPU": 1, "GPU": 1}`."""


@dataclass(frozen=True)
class NodePool:
    """Nodes of one kind that an autoscaler may start."""

    name: str  # node type in the cluster's file
    resources: Mapping[str, float]  # resources of one node
    labels: Mapping[str, str]
    most: int  # maximum number of nodes, including those that are up

    def __str__(self) -> str:
        """Describe the pool, for example as `cpu: 16 nodes of 32 CPU`."""
        has = [f"{count:g} {what}" for what, count in self.resources.items() if what in _SHOWN]
        return f"{self.name}: {self.most} nodes of {' and '.join(has) or 'nothing'}"


_SHOWN = ("CPU", "GPU")


@dataclass(frozen=True)
class Capacity:
    """Number of workers that a cluster could hold."""

    live: int  # workers that fit the live nodes if nothing else runs there
    head: int  # workers among `live` and `later` that fit the head
    later: int | None  # workers that fit once the autoscaler has started all; None if unknown
    pools: Sequence[NodePool]  # node pools that were counted


def find_capacity(
    need: Need, selector: Mapping[str, str], pools: Sequence[NodePool] | None
) -> Capacity:
    """Compute how many workers that take `need` each fit the nodes with labels `selector`."""
    fitting = [pool for pool in pools or () if matches(pool.labels, selector)]
    nodes = [node for node in _list_live_nodes() if matches(node["Labels"], selector)]
    live = sum(count_places(node["Resources"], need) for node in nodes)
    head = sum(count_places(node["Resources"], need) for node in nodes if _is_head(node))
    scaled = head + sum(pool.most * count_places(pool.resources, need) for pool in fitting)
    return Capacity(live, head, None if pools is None else max(live, scaled), fitting)


def find_least_memory(
    need: Need, selector: Mapping[str, str], pools: Sequence[NodePool] | None, headless: bool
) -> float | None:
    """Return the bytes of memory of the smallest node with labels `selector` that fits `need`.

    Returns None if no node fits, or if the memory of one that fits is unknown: the autoscaler would
    never start such a node for a worker that requests memory. `headless`: leave out the head.
    """
    nodes = [node for node in _list_live_nodes() if not (headless and _is_head(node))]
    live = [(node["Resources"], node["Labels"]) for node in nodes]
    later = [(pool.resources, pool.labels) for pool in pools or () if pool.most]
    memories = [
        resources.get("memory")
        for resources, labels in live + later
        if matches(labels, selector) and count_places(resources, need)
    ]
    known = [memory for memory in memories if memory is not None]
    return min(known, default=None) if len(known) == len(memories) else None


def count_places(resources: Mapping[str, float], need: Need) -> int:
    """Return how many workers that take `need` each fit the `resources` of one node."""
    return min(int(resources.get(name, 0) // count) for name, count in need.items() if count)


def matches(labels: Mapping[str, str], selector: Mapping[str, str]) -> bool:
    """Return whether `labels` of a node contain all labels of `selector`."""
    return all(labels.get(name) == value for name, value in selector.items())


def build_cpu_selector(pools: Sequence[NodePool] | None) -> dict[str, str]:
    """Return the label selector of stages without GPUs; empty if no node or pool matches it."""
    wanted = {POOL_LABEL: CPU_POOL}
    labels = [pool.labels for pool in pools or ()] + [node["Labels"] for node in _list_live_nodes()]
    return wanted if any(matches(node_labels, wanted) for node_labels in labels) else {}


def build_headless_selector() -> dict[str, str]:
    """Return the label selector of all nodes but the head."""
    heads = [node["NodeID"] for node in _list_live_nodes() if _is_head(node)]
    return {NODE_LABEL: f"!in({','.join(heads)})"} if heads else {}


def is_head_alone() -> bool:
    """Return whether the head is the only live node."""
    return all(_is_head(node) for node in _list_live_nodes())


def is_settled(seconds: float) -> bool:
    """Return whether no node joined or was lost within the last `seconds`.

    Returns False if that is unknown: Ray's State API needs the dashboard.
    """
    from ray.util.state import list_nodes

    try:
        nodes: Any = list_nodes(detail=True, limit=MOST_NODES, timeout=STATE_SECONDS)
    except Exception:  # Ray and its HTTP client raise errors of many classes
        return False
    since = (time.time() - seconds) * 1000
    times = [node.start_time_ms for node in nodes]
    times += [node.end_time_ms for node in nodes if node.state != "ALIVE"]
    return all(moment is not None and moment <= since for moment in times)


def describe_free_for_waiting(need: Need) -> str | None:
    """Describe the free resources if tasks of this process wait for some, and none of them runs.

    `need` are the resources of one worker. Returns None otherwise, or if Ray's State API does not
    answer, as it needs the dashboard.
    """
    import ray
    from ray.util.state import list_tasks

    untyped: Any = ray
    job = ray.get_runtime_context().get_job_id()
    states = set[str]()
    try:
        for state in (WAITING, "RUNNING"):
            filters: Any = [("job_id", "=", job), ("state", "=", state)]
            found: Any = list_tasks(filters=filters, limit=MOST_TASKS, timeout=STATE_SECONDS)
            # Ray Data's own actors have private names, such as _StatsActor.
            if any(not task.name.rpartition(":")[2].startswith("_") for task in found):
                states.add(state)
    except Exception:  # Ray and its HTTP client raise errors of many classes
        return None
    if states != {WAITING}:
        return None
    there = untyped.cluster_resources()
    free = untyped.available_resources()  # has no entry for a resource that is used up
    return ", ".join(
        f"{free.get(name, 0):g} of {there.get(name, 0):g} {name} free, {count:g} needed"
        for name, count in need.items()
        if name in _SHOWN
    )


def is_in_placement_group() -> bool:
    """Return whether Ray places the tasks of this process in a placement group."""
    import ray

    return ray.util.get_current_placement_group() is not None


def contains_gpus(pools: Sequence[NodePool] | None) -> bool:
    """Return whether a live node, or a node that may be started, has a GPU."""
    return any(resources.get("GPU", 0) >= 1 for resources in list_offers(pools))


def list_offers(pools: Sequence[NodePool] | None) -> list[Mapping[str, float]]:
    """Return the resources of each live node, and of one node of each pool that has some."""
    live = [node["Resources"] for node in _list_live_nodes()]
    return [*live, *(pool.resources for pool in pools or () if pool.most)]


def find_pools() -> Sequence[NodePool] | None:
    """Find the node pools that the autoscaler of the connected Ray cluster may start.

    The result is empty if the cluster has no autoscaler, and None if that is unknown.
    """
    import ray

    return _find_pools_of(ray.get_runtime_context().gcs_address)


@functools.cache
def _find_pools_of(cluster: str) -> Sequence[NodePool] | None:
    """Find the node pools of the connected cluster; `cluster`, its address, is the cache key."""
    import ray

    head = next((node for node in _list_live_nodes() if _is_head(node)), None)
    if head is None:
        return None
    here: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
    if head["NodeManagerAddress"] == here:
        found = read_pools()
    else:
        ask: Any = ray.remote(read_pools)
        answer = ask.options(num_cpus=0, resources=ON_HEAD).remote()
        try:
            found = ray.get(answer, timeout=ASKED)
        except ray.exceptions.RayError:
            found = None
    return None if found is None else [NodePool(**fields) for fields in found]


def read_pools() -> list[dict[str, Any]] | None:
    """Read the autoscaler's node pools as fields of `NodePool`; must run on the head node.

    The list is empty without an autoscaler. Returns None if the configuration cannot be read.
    """
    if "RAY_CLUSTER_NAME" in os.environ and "KUBERNETES_SERVICE_HOST" in os.environ:
        config = _read_kuberay_config(os.environ["RAY_CLUSTER_NAME"])
    else:
        config = _read_monitor_config()
    return config if config is None else _list_pools(config)


def _list_pools(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    kinds: Mapping[str, Any] = config.get("available_node_types") or {}
    at_most = config.get("max_workers")
    return [
        {
            "name": name,
            "resources": dict(kind.get("resources") or {}),
            "labels": dict(kind.get("labels") or {}),
            "most": min(most, at_most) if isinstance(at_most, int) else most,
        }
        for name, kind in kinds.items()
        if (most := int(kind.get("max_workers") or 0)) and name != config.get("head_node_type")
    ]


def _read_monitor_config() -> Mapping[str, Any]:
    """Read the file that this head's autoscaler was started with; return {} if there is none."""
    import ray
    import yaml

    here = f"--gcs-address={ray.get_runtime_context().gcs_address}"
    option = "--autoscaling-config="
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().decode(errors="replace").split("\0")
        except OSError:  # the process has ended
            continue
        given = [word.removeprefix(option) for word in command if word.startswith(option)]
        if given and given[0] and here in command:
            text = Path(given[0]).expanduser().read_text()
            return dict(json.loads(text) if given[0].endswith(".json") else yaml.safe_load(text))
    return {}


def _read_kuberay_config(name: str) -> Mapping[str, Any] | None:
    """Read the RayCluster `name` from Kubernetes; return None if it cannot be read."""
    version = os.environ.get("KUBERAY_CRD_VER", "v1")
    try:
        host = os.environ["KUBERNETES_SERVICE_HOST"]
        host = f"[{host}]" if ":" in host else host
        port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
        namespace = (SERVICE_ACCOUNT / "namespace").read_text().strip()
        token = (SERVICE_ACCOUNT / "token").read_text().strip()
        request = urllib.request.Request(
            f"https://{host}:{port}/apis/ray.io/{version}/namespaces/{namespace}/rayclusters/{name}",
            headers={"Authorization": f"Bearer {token}"},
        )
        trusted = ssl.create_default_context(cafile=str(SERVICE_ACCOUNT / "ca.crt"))
        # Without a proxy: urllib does not understand the address ranges in NO_PROXY.
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=trusted)
        )
        with opener.open(request, timeout=ASKED / 2) as answer:
            return convert_ray_cluster(json.load(answer))
    except Exception:  # errors of any kind mean that the pools are unknown
        return None


def convert_ray_cluster(cluster: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a RayCluster of KubeRay to the configuration of Ray's autoscaler, as far as needed.

    Raises ValueError or LookupError for a group whose CPUs are not given.
    """
    kinds = {
        group["groupName"]: {
            "resources": _read_group_resources(group),
            "labels": group.get("labels") or {},
            "max_workers": group["maxReplicas"] * group.get("numOfHosts", 1),
        }
        for group in cluster["spec"].get("workerGroupSpecs") or ()
    }
    return {
        "available_node_types": kinds,
        "max_workers": sum(kind["max_workers"] for kind in kinds.values()),
    }


def _read_group_resources(group: Mapping[str, Any]) -> dict[str, int]:
    """Return Ray's resources of one pod of a group, each rounded up.

    The group's own `resources` come first, then its `rayStartParams`, then the limits and requests
    of its first container.
    """
    own = group.get("resources") or {}
    options = group.get("rayStartParams") or {}
    container = group["template"]["spec"]["containers"][0].get("resources") or {}
    pod = {**(container.get("requests") or {}), **(container.get("limits") or {})}
    gpus = [amount for name, amount in pod.items() if name.endswith("gpu")]
    found = {
        "CPU": own.get("CPU", options.get("num-cpus", pod.get("cpu"))),
        "GPU": own.get("GPU", options.get("num-gpus", gpus[0] if gpus else None)),
        "memory": own.get("memory", options.get("memory", pod.get("memory"))),
    }
    if found["CPU"] is None:
        raise ValueError(f"{group['groupName']}: the CPUs are not given")
    # `resources` of rayStartParams is JSON in quotes, with escaped quotes inside.
    others = own or json.loads(options.get("resources", '"{}"')[1:-1].replace("\\", ""))
    found |= {name: amount for name, amount in others.items() if name not in found}
    return {name: _parse_quantity(amount) for name, amount in found.items() if amount is not None}


def _parse_quantity(quantity: Any) -> int:
    """Return a quantity of Kubernetes, such as `200Mi` or `1500m`, rounded up."""
    number, suffix = re.fullmatch(r"([-+.\deE]*\d\.?)([A-Za-z]*)", str(quantity)).groups()  # type: ignore[union-attr]
    return math.ceil(Decimal(number) * UNITS[suffix])


UNITS = {
    **{"n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"), "": Decimal(1)},
    **{suffix: Decimal(1000) ** power for power, suffix in enumerate("kMGTPE", 1)},
    **{f"{suffix}i": Decimal(1024) ** power for power, suffix in enumerate("KMGTPE", 1)},
}


def _list_live_nodes() -> list[dict[str, Any]]:
    import ray

    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return [node for node in nodes if node["Alive"]]


def _is_head(node: Mapping[str, Any]) -> bool:
    return "node:__internal_head__" in node["Resources"]
