"""Warm actors: fork servers and train controllers that outlive attempts.

They keep the modules that they have imported, which makes restarts fast.
"""

import functools
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from trainrig.processes.fork_server import ForkServer
from trainrig.ray_runtime.ray_session import WORKER_ENVIRONMENT
from trainrig.train.elastic.messages import WorkerGroupSpec
from trainrig.train.elastic.restart_policy import WorkerNode
from trainrig.train.elastic.worker_agent import MODULES


def find_idle_surplus(
    nodes: Sequence[WorkerNode],
    ours: Counter[str],
    most: int,
    avoid: frozenset[str] = frozenset(),
) -> set[str]:
    """Return idle nodes that the run does not need even at its largest size.

    Ray's autoscaler does not remove a node with an actor on it, so an unneeded node with a fork
    server would cost money for nothing.

    Args:
        nodes: The nodes of the cluster.
        ours: Number of the run's workers by node.
        most: Largest number of workers of the run.
        avoid: Nodes that the run does not use.
    """
    left = most - sum(ours.values())
    beyond = set()
    for node in nodes:
        free = node.capacity - ours[node.id]
        if left > 0 and free > 0 and not node.draining and node.id not in avoid:
            left -= free
        elif free == node.slots:
            beyond.add(node.id)
    return beyond


@functools.cache
def get_warm_actors(node: str, job: str) -> "WarmActors":
    """Return the warm actors of the driver on `node` with the Ray job id `job`."""
    return WarmActors(get_fork_servers(node, job))


@functools.cache
def get_fork_servers(node: str, job: str) -> "ForkServerPool":
    """Return the fork servers of the driver on `node` with the Ray job id `job`."""
    del node, job
    return ForkServerPool()


class ForkServerPool:
    """Fork-server actors of a driver, at most one per node."""

    def __init__(self) -> None:
        self.by_node: dict[str, Any] = {}

    def serve(self, nodes: Iterable[str]) -> None:
        """Start a fork server on each of `nodes` that has none."""
        for node in nodes:
            if node not in self.by_node:
                self.by_node[node] = _start_fork_server(node)

    def leave(self, nodes: Iterable[str]) -> None:
        """End the fork servers on `nodes`."""
        import ray

        for node in self.by_node.keys() & set(nodes):
            ray.kill(self.by_node.pop(node))


class WarmActors:
    """Actors that outlive the attempts and runs of this process, with their imported modules."""

    def __init__(self, servers: ForkServerPool) -> None:
        self.fork_servers = servers
        self._controller: Any = _start_controller()
        # Ray object reference; the controller is busy until it has a result
        self._busy_until: Any = None

    def take_controller(self) -> Any:
        """Return a controller that is free and, as far as is known, alive."""
        import ray

        busy = self._busy_until is not None and not ray.wait([self._busy_until], timeout=0)[0]
        if self._controller and busy:  # with a worker group that was abandoned
            ray.kill(self._controller)
            self._controller = None
        self._busy_until = None
        self._controller = self._controller or _start_controller()
        return self._controller

    def mark_busy(self, until: Any) -> None:
        """Mark the train controller as busy until the Ray object `until` has a result."""
        self._busy_until = until

    def mark_controller_lost(self) -> None:
        """Forget the train controller, as it died or was killed; the next call starts another."""
        self._controller = None


class TrainController:
    """Actor on the driver's node that runs Ray Train's controller.

    It alone imports Ray Train, which takes a second and includes pandas.
    """

    def __init__(self) -> None:
        from trainrig.train.elastic import train_controller as controller

        self._fit = controller.fit

    def fit(self, group: WorkerGroupSpec, config: Mapping[str, Any]) -> Exception | None:
        """Run a worker group; see `train_controller.fit`."""
        return self._fit(group, config)


def _start_controller() -> Any:
    import ray

    actor: Any = ray.remote(TrainController)
    blocks = {"RAY_WARN_BLOCKING_GET_INSIDE_ASYNC": "0"}  # Ray Train sets it for its controller too
    return actor.options(
        num_cpus=0,
        scheduling_strategy=place_only_on(ray.get_runtime_context().get_node_id()),
        runtime_env={"env_vars": WORKER_ENVIRONMENT | _read_train_settings() | blocks},
    ).remote()


def _read_train_settings() -> dict[str, str]:
    """Return the environment variables that Ray Train itself passes to its workers."""
    return {
        name: value
        for name, value in os.environ.items()
        if name.startswith("RAY_TRAIN_") or name == "NCCL_RAS_ADDR"
    }


def _start_fork_server(node: str) -> Any:
    import ray

    actor: Any = ray.remote(ForkServer)
    there = actor.options(num_cpus=0, scheduling_strategy=place_only_on(node), max_restarts=-1)
    return there.remote(*MODULES)


def place_only_on(node: str) -> Any:
    """Return the scheduling strategy that places an actor on `node` or fails."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node, soft=False)
