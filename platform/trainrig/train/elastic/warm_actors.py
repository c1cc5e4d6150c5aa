"""Warm actors: fork servers and the train controller, which outlive attempts with all that they
have imported."""

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
    """Nodes on which nothing runs, and onto which a run of `most` workers at the most would not
    grow either; `ours`: its workers by node; `avoid`: nodes that it keeps off.

    Ray's autoscaler ends no node that an actor lives on, and one that nobody needs costs as much
    as one that somebody does.
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
    """Those of this connection to Ray, which is the `job` of a driver on `node`."""
    return WarmActors(get_fork_servers(node, job))


@functools.cache
def get_fork_servers(node: str, job: str) -> "ForkServerPool":
    """Those of this connection to Ray, as of `get_warm_actors`."""
    del node, job
    return ForkServerPool()


class ForkServerPool:
    """One on each node that was asked for."""

    def __init__(self) -> None:
        self.by_node: dict[str, Any] = {}

    def serve(self, nodes: Iterable[str]) -> None:
        """Have a fork server on each of `nodes`, before a worker is there that asks for it."""
        for node in nodes:
            if node not in self.by_node:
                self.by_node[node] = _start_fork_server(node)

    def leave(self, nodes: Iterable[str]) -> None:
        """Have none on `nodes` any more."""
        import ray

        for node in self.by_node.keys() & set(nodes):
            ray.kill(self.by_node.pop(node))


class WarmActors:
    """Actors that outlive attempts, and runs of this process: what they imported stays so."""

    def __init__(self, servers: ForkServerPool) -> None:
        self.fork_servers = servers
        self._controller: Any = _start_controller()
        self._busy_until: Any = None  # until this has a result

    def take_controller(self) -> Any:
        """One that is alive, as far as is known, and free."""
        import ray

        busy = self._busy_until is not None and not ray.wait([self._busy_until], timeout=0)[0]
        if self._controller and busy:  # with a worker group that was left to itself
            ray.kill(self._controller)
            self._controller = None
        self._busy_until = None
        self._controller = self._controller or _start_controller()
        return self._controller

    def mark_busy(self, until: Any) -> None:
        """The train controller is not free before `until`, an object of Ray's, is there."""
        self._busy_until = until

    def mark_controller_lost(self) -> None:
        """It died, or has to."""
        self._controller = None


class TrainController:
    """An actor on the driver's node. It alone imports Ray Train: a second, and pandas."""

    def __init__(self) -> None:
        from trainrig.train.elastic import train_controller as controller

        self._fit = controller.fit

    def fit(self, group: WorkerGroupSpec, config: Mapping[str, Any]) -> Exception | None:
        """See the module that it imports."""
        return self._fit(group, config)


def _start_controller() -> Any:
    import ray

    actor: Any = ray.remote(TrainController)
    blocks = {"RAY_WARN_BLOCKING_GET_INSIDE_ASYNC": "0"}  # as Ray Train's controller does
    return actor.options(
        num_cpus=0,
        scheduling_strategy=place_only_on(ray.get_runtime_context().get_node_id()),
        runtime_env={"env_vars": WORKER_ENVIRONMENT | _read_train_settings() | blocks},
    ).remote()


def _read_train_settings() -> dict[str, str]:
    """What Ray Train itself hands on, from the environment of this process."""
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
    """The placement on `node` or nowhere."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node, soft=False)
