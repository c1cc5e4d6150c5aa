"""Warm actors: fork servers and train controllers that outlive attempts to train.

A run makes a new attempt with other workers after each failure or change of size. Warm actors keep
the modules that they have imported, which makes that fast. A *fork server* is a process that forks
the workers of its node (processes/fork_server.py). The *train controller* runs Ray Train's
controller, which starts the worker group: the workers of an attempt.
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
    """Return nodes without any worker that the run does not need even at its largest size.

    Idle nodes that are draining or to be avoided are among them. Ray's autoscaler does not remove a
    node with an actor on it, so an unneeded node with a fork server would cost money for nothing.

    Args:
        nodes: The nodes of the cluster.
        ours: Number of the run's workers by node.
        most: Largest number of workers of the run.
        avoid: Nodes that the run does not use.
    """
    needed = most - sum(ours.values())  # workers that the run may still add
    surplus = set()
    for node in nodes:
        free = node.capacity - ours[node.id]
        if needed > 0 and free > 0 and not node.draining and node.id not in avoid:
            needed -= free
        elif free == node.slots:  # nothing runs there
            surplus.add(node.id)
    return surplus


@functools.cache
def get_warm_actors(node: str, job: str) -> "WarmActors":
    """Return the warm actors of this driver, cached by its `node` and Ray job id `job`."""
    return WarmActors(get_fork_servers(node, job))


@functools.cache
def get_fork_servers(node: str, job: str) -> "ForkServerPool":
    """Return the fork servers of this driver, cached by its `node` and Ray job id `job`."""
    del node, job  # only keys of the cache
    return ForkServerPool()


class ForkServerPool:
    """Fork-server actors of a driver, at most one per node."""

    def __init__(self) -> None:
        self.by_node: dict[str, Any] = {}

    def start_missing(self, nodes: Iterable[str]) -> None:
        """Start a fork server on each of `nodes` that has none."""
        for node in nodes:
            if node not in self.by_node:
                self.by_node[node] = _start_fork_server(node)

    def end(self, nodes: Iterable[str]) -> None:
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
        if self._controller and busy:  # with a worker group that the driver no longer waits for
            ray.kill(self._controller)
            self._controller = None
        self._busy_until = None
        self._controller = self._controller or _start_controller()
        return self._controller

    def mark_busy(self, until: Any) -> None:
        """Mark the train controller as busy until the Ray object `until` has a result."""
        self._busy_until = until

    def mark_controller_lost(self) -> None:
        """Forget the train controller, which died; `take_controller` then starts another."""
        self._controller = None


class TrainController:
    """Actor on the driver's node that runs Ray Train's controller.

    It alone imports Ray Train, which takes a second and includes pandas.
    """

    def __init__(self) -> None:
        from trainrig.train.elastic import train_controller as controller

        self._fit = controller.fit

    def fit(self, group: WorkerGroupSpec, config: Mapping[str, Any]) -> Exception | None:
        """Run a worker group to its end and return its error, if any: `train_controller.fit`."""
        return self._fit(group, config)


def _start_controller() -> Any:
    import ray

    actor: Any = ray.remote(TrainController)
    # Ray Train sets this variable for its own controller, too.
    no_warning = {"RAY_WARN_BLOCKING_GET_INSIDE_ASYNC": "0"}
    return actor.options(
        num_cpus=0,
        scheduling_strategy=place_only_on(ray.get_runtime_context().get_node_id()),
        runtime_env={"env_vars": WORKER_ENVIRONMENT | _read_train_settings() | no_warning},
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
