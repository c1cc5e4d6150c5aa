"""A cluster of several raylets on this machine, each of which acts as a separate machine."""

import os
import time
from typing import Any

from support.waiting import wait_until
from trainrig.ray_runtime.ray_session import ENVIRONMENT

MEMORY = 80 * 2**20  # bytes of an object store: the least that Ray accepts
DEADLINE_MS = 30_000  # deadline of a drain notice
PATIENCE = 120.0  # s until the head has noticed the lost nodes; ends a broken test


class Raylets:
    """A head without room for workers, and nodes with room for one worker each."""

    def __init__(self) -> None:
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)  # the head decides how soon a lost node is noticed
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": MEMORY}
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self.nodes = [self.add(), self.add()]
        self._cluster.wait_for_nodes()
        self.address = self._cluster.address

    def add(self) -> Any:
        return self._cluster.add_node(num_cpus=1, object_store_memory=MEMORY, wait=False)

    def come(self) -> None:
        self.nodes.append(self.add())

    def die(self) -> None:
        self._cluster.remove_node(self.nodes.pop(), allow_graceful=False)

    def shrink_to(self, count: int) -> None:
        """Leave `count` nodes, as an earlier test may have left more."""
        import ray

        while len(self.nodes) > count:
            self.die()

        def is_small() -> bool:
            alive = [node for node in ray.nodes() if node["Alive"]]
            return sum("CPU" in node["Resources"] for node in alive) <= count

        wait_until(is_small, every=0.1)

    def drain(self) -> None:
        """Send the drain notice that a cloud sends before it takes a machine back."""
        from ray._raylet import GcsClient  # type: ignore[attr-defined]
        from ray.core.generated import autoscaler_pb2

        reason = autoscaler_pb2.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")  # type: ignore[attr-defined]
        deadline = int(time.time() * 1000) + DEADLINE_MS
        GcsClient(address=self.address).drain_node(
            self.nodes[-1].node_id, reason, "taken back", deadline
        )

    def shutdown(self) -> None:
        self._cluster.shutdown()
