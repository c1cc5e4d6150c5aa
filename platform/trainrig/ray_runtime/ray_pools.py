"""The nodes that a cluster may have: those that are up, and what its autoscaler may bring, by pool.

Ray's autoscaler tells nobody what it may start, so its own file is read, on the head, where it
runs. A node says by a label which pool it is of; clusters without labels work, as one pool.
"""

import functools
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LABEL = "trainrig.io/pool"
CPU_POOL = "cpu"  # as in config/resource_request.py: a cluster's head runs this file by itself
# Ray gives the head node this resource. An actor that needs nothing may land on any node, and would
# go with it, or keep it from going.
ON_HEAD = {"node:__internal_head__": 0.001}
NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")  # of a pod
ASKED = 60.0  # s that the head may take to say what it knows

Need = Mapping[str, float]
"""What one worker takes of a node: `{"CPU": 1, "GPU": 1}`."""


@dataclass(frozen=True)
class NodePool:
    """Nodes of one kind that an autoscaler may start."""

    name: str  # as in the cluster's file
    resources: Mapping[str, float]  # of one node
    labels: Mapping[str, str]
    most: int  # nodes at a time, those that are up among them

    def __str__(self) -> str:
        """As `cpu: 16 nodes of 32 CPU`."""
        has = [f"{count:g} {what}" for what, count in self.resources.items() if what in _SHOWN]
        return f"{self.name}: {self.most} nodes of {' and '.join(has) or 'nothing'}"


_SHOWN = ("CPU", "GPU")


@dataclass(frozen=True)
class Capacity:
    """How many workers a cluster could hold."""

    live: int  # on the nodes that are up, were nothing else there
    later: int | None  # with all that its autoscaler may bring; None: it does not say
    pools: Sequence[NodePool]  # that were looked at


def find_capacity(
    need: Need, selector: Mapping[str, str], pools: Sequence[NodePool] | None
) -> Capacity:
    """For workers that take `need` each, on nodes with the labels of `selector`."""
    fitting = [pool for pool in pools or () if matches(pool.labels, selector)]
    nodes = [node for node in _list_live_nodes() if matches(node["Labels"], selector)]
    live = sum(count_places(node["Resources"], need) for node in nodes)
    head = sum(count_places(node["Resources"], need) for node in nodes if _is_head(node))
    scaled = head + sum(pool.most * count_places(pool.resources, need) for pool in fitting)
    return Capacity(live, None if pools is None else max(live, scaled), fitting)


def count_places(resources: Mapping[str, float], need: Need) -> int:
    """How many times `need` goes into the `resources` of one node."""
    return min(int(resources.get(what, 0) // each) for what, each in need.items() if each)


def matches(labels: Mapping[str, str], selector: Mapping[str, str]) -> bool:
    """Whether a node with `labels` is one that `selector` asks for."""
    return all(labels.get(name) == value for name, value in selector.items())


def build_cpu_selector(pools: Sequence[NodePool] | None) -> dict[str, str]:
    """Which labels a stage without accelerators asks of its nodes; none where no pool is for it."""
    wanted = {LABEL: CPU_POOL}
    labels = [pool.labels for pool in pools or ()] + [node["Labels"] for node in _list_live_nodes()]
    return wanted if any(matches(each, wanted) for each in labels) else {}


def has_gpus(pools: Sequence[NodePool] | None) -> bool:
    """Whether some node has an accelerator, or one that may come has."""
    having = [pool.resources for pool in pools or () if pool.most]
    having += [node["Resources"] for node in _list_live_nodes()]
    return any(each.get("GPU", 0) >= 1 for each in having)


def find_pools() -> Sequence[NodePool] | None:
    """What the autoscaler of the Ray that this process is connected to may start.

    Empty if nothing scales it; None if that cannot be known.
    """
    import ray

    return _find_pools_of(ray.get_runtime_context().gcs_address)


@functools.cache
def _find_pools_of(cluster: str) -> Sequence[NodePool] | None:
    """Those of the cluster at that address, which this process is connected to."""
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
    return None if found is None else [NodePool(**each) for each in found]


def read_pools() -> list[dict[str, Any]] | None:
    """On the head: what the file of its autoscaler allows, as the fields of `NodePool`."""
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
    """The file that the autoscaler of this machine's head was started with; empty without one."""
    import ray
    import yaml

    here = f"--gcs-address={ray.get_runtime_context().gcs_address}"
    option = "--autoscaling-config="
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().decode(errors="replace").split("\0")
        except OSError:  # it has ended
            continue
        given = [word.removeprefix(option) for word in command if word.startswith(option)]
        if given and given[0] and here in command:
            text = Path(given[0]).expanduser().read_text()
            return dict(json.loads(text) if given[0].endswith(".json") else yaml.safe_load(text))
    return {}


def _read_kuberay_config(name: str) -> Mapping[str, Any] | None:
    """What KubeRay's autoscaler reads, from where it does; None without the right to."""
    # Private, and here: a cluster's head runs this file by itself, where trainrig may not be.
    from ray.autoscaler._private.kuberay.autoscaling_config import (
        _derive_autoscaling_config_from_ray_cr,
    )
    from ray.autoscaler._private.kuberay.node_provider import KubernetesHttpApiClient

    try:
        client = KubernetesHttpApiClient(namespace=NAMESPACE.read_text())
        cluster = client.get(f"rayclusters/{name}")
        config: dict[str, Any] = _derive_autoscaling_config_from_ray_cr(cluster)
    except Exception:  # whatever requests or Kubernetes say: it stays unknown
        return None
    return config


def _list_live_nodes() -> list[dict[str, Any]]:
    import ray

    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return [node for node in nodes if node["Alive"]]


def _is_head(node: Mapping[str, Any]) -> bool:
    return "node:__internal_head__" in node["Resources"]
