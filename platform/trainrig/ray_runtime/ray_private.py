"""All uses of Ray's private API in trainrig: five names, with reason and fallback of each.

Nothing of Ray is overwritten. Each function gives the reason why the public API does not suffice,
and the public fallback for releases of Ray that lack the name. `tests/ray_runtime/
test_ray_private.py` takes every fallback, and finds private imports in other modules.

Imports are local: Ray Train imports pandas, which takes a second.
"""

import importlib.util
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainrig.errors import ClusterError

# Node provider of the autoscaler that starts raylets on this machine, but no machines. Public way:
# none; Ray's documentation uses the same provider to test the autoscaler locally.
LOCAL_NODE_PROVIDER = "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider"
PREEMPTION = 2  # number of DRAIN_NODE_REASON_PREEMPTION in Ray's protocol


def find_local_node_provider() -> str:
    """Return the path of the class LOCAL_NODE_PROVIDER. Raises ClusterError if it is gone."""
    module = LOCAL_NODE_PROVIDER.rpartition(".")[0]
    try:
        found = importlib.util.find_spec(module)
    except (ModuleNotFoundError, ValueError):  # a package above it is gone, or it was
        found = None
    if found is None:
        raise ClusterError(
            "this release of Ray cannot start a cluster of several nodes on one machine; start "
            "them by `ray start` and set RAY_ADDRESS, or install the release in constraints.txt"
        )
    return LOCAL_NODE_PROVIDER


def list_draining_nodes() -> Mapping[str, Any]:
    """Return the nodes that are being drained, by node id, with Ray's record of each drain.

    Public way: none; the State API (`ray.util.state`) does not show drains. Fallback: no node is
    known to drain, and a run moves only after the node is lost.
    """
    try:
        from ray._private.state import state

        return state.get_draining_nodes() or {}
    except (ImportError, AttributeError):
        return {}


def list_free_resources() -> Mapping[str, Mapping[str, float]]:
    """Return the free resources of each node, by node id.

    Public way: `ray.available_resources()`, which returns the sum over all nodes. Fallback: all
    resources of each live node, as if nothing else ran there. A worker group that does not fit then
    fails to start, and is tried again.
    """
    try:
        from ray._private.state import state

        free: Mapping[str, Mapping[str, float]]
        free = state.available_resources_per_node()  # type: ignore[no-untyped-call]
    except (ImportError, AttributeError):
        import ray

        nodes: Any = ray.nodes()  # type: ignore[no-untyped-call]
        return {node["NodeID"]: node["Resources"] for node in nodes if node["Alive"]}
    return free


class NodeRequests:
    """Requests for nodes to the autoscaler, under a name that no other requester has.

    Ray's libraries send them through an actor that sums the requests of all requesters and drops
    those that are not renewed. Public way, which is the fallback:
    `ray.autoscaler.sdk.request_resources`, where the newest request replaces all others and
    outlives its driver.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._actor_handle: Any = None
        self._by_sdk = False  # True once a request was sent by the fallback

    def send(self, resources: list[dict[str, float]], expire_seconds: float) -> None:
        """Request nodes for all `resources` together, for at most `expire_seconds`."""
        if actor := self._find_actor():
            actor.request_resources.remote(
                requester_id=self._name, resources=resources, expire_after_s=expire_seconds
            )
        else:
            from ray.autoscaler.sdk import request_resources

            request_resources(bundles=resources)
            self._by_sdk = True

    def cancel(self) -> None:
        """Cancel the request."""
        if self._actor_handle is not None:
            self._actor_handle.cancel_request.remote(self._name)
        elif self._by_sdk:
            self.send([], 0.0)

    def _find_actor(self) -> Any:
        if self._actor_handle is None:
            try:
                from ray.data._internal.cluster_autoscaler import (
                    get_or_create_autoscaling_coordinator as find,
                )
            except ImportError:
                return None
            self._actor_handle = find()  # type: ignore[no-untyped-call]
        return self._actor_handle


def make_trainer(train_loop: Callable[[dict[str, Any]], None], backend: Any, **options: Any) -> Any:
    """Return a trainer of Ray Train that runs `train_loop` on each worker.

    Ray documents `DataParallelTrainer` as an API for developers, but its path is not public. Public
    way, which is the fallback: its subclass `TorchTrainer`, which imports torch into this process:
    two seconds and 220 MiB.

    Args:
        train_loop: the function that each worker runs.
        backend: the BackendConfig.
        options: keyword arguments of both classes.
    """
    try:
        from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
    except ImportError:
        from ray.train.torch import TorchTrainer

        return TorchTrainer(train_loop, torch_config=backend, **options)
    return DataParallelTrainer(train_loop, backend_config=backend, **options)


@dataclass(frozen=True)
class LiveNode:
    """Live node of a cluster."""

    id: str
    address: str
    labels: Mapping[str, str]


class HeadClient:
    """Client of a cluster's head that does not join the cluster.

    Public way: `ray.init(address=…)`, which joins, starts processes and takes two seconds; the
    State API, which needs the dashboard; and the command `ray drain-node`.
    """

    def __init__(self, address: str) -> None:
        """Connect to the head at `address`, as HOST:PORT. Raises RayError."""
        self._address = address
        self._client: Any = None
        try:
            from ray._raylet import GcsClient  # type: ignore[attr-defined]
        except ImportError:
            return
        self._client = GcsClient(address=address)

    def read_cluster_id(self) -> str | None:
        """Return the id of the cluster as hex digits.

        A head without a store of its own gets a new id whenever it starts. Fallback: None;
        then another cluster at the same address is taken for it.
        """
        return None if self._client is None else str(self._client.cluster_id.hex())

    def list_live_nodes(self, seconds: float) -> Sequence[LiveNode]:
        """Return all live nodes; the head must answer within `seconds`. Raises RayError.

        Fallback: the State API, which needs the dashboard.
        """
        if self._client is None:
            from ray.util.state import list_nodes

            found: Any = list_nodes(
                self._address, [("state", "=", "ALIVE")], detail=True, timeout=int(seconds)
            )
            return [LiveNode(node.node_id, node.node_ip, node.labels or {}) for node in found]
        return [
            LiveNode(node.node_id.hex(), node.node_manager_address, node.labels)
            for node in self._client.get_all_node_info(timeout=seconds).values()
            if node.state == node.ALIVE
        ]

    def drain(self, node: str, why: str, deadline: float, seconds: float) -> str:
        """Drain `node` until `deadline` (as time.time()); return the problem, or "".

        The head must answer within `seconds`. Raises RayError. Fallback: the command `ray
        drain-node`, which takes some seconds.
        """
        if self._client is None:
            return self._drain_by_command(node, why, deadline)
        agreed, problem = self._client.drain_node(
            node, PREEMPTION, why, int(deadline * 1000), seconds
        )
        return "" if agreed else str(problem)

    def _drain_by_command(self, node: str, why: str, deadline: float) -> str:
        left = max(0, int(deadline - time.time()))
        command = [
            str(Path(sys.executable).with_name("ray")),
            *("drain-node", f"--address={self._address}", f"--node-id={node}"),
            *("--reason=DRAIN_NODE_REASON_PREEMPTION", f"--reason-message={why}"),
            f"--deadline-remaining-seconds={left}",
        ]
        done = subprocess.run(command, capture_output=True, text=True)
        lines = done.stderr.strip().splitlines()
        return "" if done.returncode == 0 else (lines[-1] if lines else f"exit {done.returncode}")
