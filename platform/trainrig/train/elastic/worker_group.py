"""The worker group: Ray Train's workers with a worker agent each, and the actors that start them.

When a rank dies, its worker agent stands by, and the next attempt is assigned to the same worker
group; it starts as fast as a fork. If a worker agent dies, a node is lost or the run moves, the
worker group ends, and Ray starts another. Fork servers and train controllers are *warm* actors:
they outlive attempts and keep the modules that they have imported, which makes restarts fast.
"""

import contextlib
import functools
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

from trainrig.processes.fork_server import ForkServer
from trainrig.processes.process_identity import Process
from trainrig.ray_runtime import node_placement, ray_local
from trainrig.ray_runtime.ray_session import WORKER_ENVIRONMENT
from trainrig.train.elastic.coordinator import RankExit, WorkerGroupSpec
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

    `ours`: number of the run's workers by node. `most`: largest number of workers of the run.
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
    """Actor on the driver's node that calls Ray Train's `fit`.

    It alone imports Ray Train, which takes a second and includes pandas. Ray Train's own controller
    is another actor, which ends with this one.
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
    settings = WORKER_ENVIRONMENT | _read_train_settings() | no_warning | _point_cleaner()
    return actor.options(
        name=node_placement.name_actor("train-controller"),
        num_cpus=0,
        scheduling_strategy=place_only_on(ray.get_runtime_context().get_node_id()),
        runtime_env={"env_vars": settings},
    ).remote()


def _read_train_settings() -> dict[str, str]:
    """Return the environment variables that Ray Train itself passes to its workers."""
    return {
        name: value
        for name, value in os.environ.items()
        if name.startswith("RAY_TRAIN_") or name == "NCCL_RAS_ADDR"
    }


def _point_cleaner() -> dict[str, str]:
    """Return the environment variable by which Ray Train's cleaner finds this cluster.

    The cleaner asks the State API every second whether Ray's controller lives, and removes the
    placement group of a controller that is unknown there. By itself it would ask, and show the
    token to, the Ray that was started last on the machine, or whoever listens at 127.0.0.1:8265,
    which a Ray without a dashboard records as the address of its own. There is no State API in a
    local Ray, so its cleaner gets a scheme that Ray does not know, and stops to ask.
    """
    import ray

    if ray_local.is_in_cluster():
        return {"RAY_ADDRESS": ray.get_runtime_context().gcs_address}
    return {"RAY_API_SERVER_ADDRESS": "no-dashboard://"}


def _start_fork_server(node: str) -> Any:
    import ray

    actor: Any = ray.remote(ForkServer)
    there = actor.options(
        name=node_placement.name_actor("fork-server", node[:8]),
        num_cpus=0,
        scheduling_strategy=place_only_on(node),
        max_restarts=-1,
    )
    return there.remote(*MODULES)


def place_only_on(node: str) -> Any:
    """Return the scheduling strategy that places an actor on `node` or fails."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node, soft=False)


ANSWER = 1.0  # s for the actor of a fork server to answer
# s for Ray Train to end; it checks every half second whether its workers are done or dead
END_TIMEOUT = 3.0


class WorkerGroup:
    """Worker group, as its driver sees it."""

    def __init__(
        self,
        warm_actors: WarmActors,
        coordinator: Any,
        config: Mapping[str, Any],
        workers: int,
        gpus: bool,
        avoid: frozenset[str],
        nested: tuple[int, ...] = (),
        run: str = "run",
    ) -> None:
        """Have Ray start the worker agents; return before one is up.

        Args:
            warm_actors: Provides the train controller and the fork servers.
            coordinator: Handle of the Coordinator actor.
            config: Configuration of each worker agent.
            workers: Number of worker agents.
            gpus: Whether each of them gets a GPU.
            avoid: Ids of nodes on which none may run.
            nested: Sizes of groups of ranks that should be on one node; each size is a multiple of
            the one before.
            run: Name of the run, for Ray's list of training runs.
        """
        self.number: int = config["attempt"]  # number of its first attempt
        self.workers = workers
        self.nodes: dict[int, str] = {}  # node id by rank, as far as reported
        # rank of each Ray worker, in Ray's order; empty until it is reported
        self.ranks: Sequence[int] = ()
        self.standing_by = False  # True if every worker agent waits for an assignment
        self.rendezvous = ""  # URL of the rendezvous endpoint for the next attempt
        self._coordinator = coordinator
        self._warm_actors = warm_actors
        self._controller = warm_actors.take_controller()
        self._earlier_groups = node_placement.list_placement_groups()
        group = WorkerGroupSpec(
            name=f"{run}-attempt-{self.number:04d}",
            scratch=ray_local.find_session_folder(),
            workers=workers,
            gpus=gpus,
            environment=WORKER_ENVIRONMENT,
            avoid=avoid,
            nested=nested,
        )
        self.fit: Any = self._controller.fit.remote(group, dict(config))
        warm_actors.mark_busy(self.fit)

    def is_over(self) -> bool:
        """Return whether the worker group has ended, according to Ray."""
        import ray

        return bool(ray.wait([self.fit], timeout=0)[0])

    def read_error(self) -> BaseException | None:
        """Wait for the end of the group; return the error that ended it, if any."""
        import ray

        try:
            raised: BaseException | None = ray.get(self.fit)
        except Exception as error:
            return error
        return raised

    def controller_died(self) -> bool:
        """Return whether a train controller died, of a worker group that is over.

        That is trainrig's actor, or Ray Train's own, whose death `fit` raises there.
        """
        import ray.exceptions

        error = self.read_error()
        raised_there = ray.exceptions.RayTaskError
        return isinstance(error, ray.exceptions.RayError) and not isinstance(error, raised_there)

    def stand_by(self, exits: Mapping[int, RankExit]) -> None:
        """Record that all worker agents wait for an assignment, after their ranks' `exits`."""
        self.standing_by = True
        self.rendezvous = exits[0].rendezvous
        self.nodes = {rank: end.node for rank, end in exits.items()}

    def can_run(self, workers: int, nodes: Set[str]) -> bool:
        """Return whether the group stands by with `workers` workers, all of them on `nodes`."""
        there = set(self.nodes.values()) <= nodes
        return self.standing_by and self.workers == workers and there and not self.is_over()

    def find_rank(self, worker: int) -> int:
        """Return the rank of Ray's `worker`, counted in Ray's order; the same if unreported."""
        return self.ranks[worker] if self.ranks else worker

    def count_agents(self) -> Counter[str]:
        """Return the number of its worker agents on each node, as far as they have reported it."""
        return Counter(() if self.is_over() else self.nodes.values())

    def kill(self, processes: Iterable[tuple[str, Process]]) -> None:
        """Send SIGKILL to (node id, process) pairs, as far as the processes still live."""
        import ray

        here = ray.get_runtime_context().get_node_id()
        by_node: dict[str, set[Process]] = {}
        for node, process in processes:
            by_node.setdefault(node, set()).add(process)
        for node, left in by_node.items():
            if node == here:
                _kill(left)
            else:
                ray.remote(_kill).options(
                    num_cpus=0, scheduling_strategy=place_only_on(node)
                ).remote(left)

    def ran_out_of_memory(self, node: str) -> bool:
        """Return whether the kernel of `node` has ended a process since the last call."""
        import ray
        import ray.exceptions

        server = self._warm_actors.fork_servers.by_node.get(node)
        with contextlib.suppress(ray.exceptions.RayError):
            if server is not None:
                return bool(ray.get(server.ran_out_of_memory.remote(), timeout=ANSWER))
        return False

    def leave(self) -> None:
        """Release the worker agents that stand by, and free their resources."""
        self.standing_by = False
        self._coordinator.release_agents.remote(self.number)
        self.free()

    def free(self) -> None:
        """Free the resources of a worker group that is ending; end it if it does not end in time.

        Otherwise, the next worker group would wait for resources that a dead train controller
        holds.
        """
        import ray

        ray.wait([self.fit], timeout=END_TIMEOUT)
        if not self.is_over():  # the controller waits for worker agents that will never answer
            ray.kill(self._controller)
            self._warm_actors.mark_controller_lost()
        elif self.controller_died():
            ray.kill(self._controller)  # lives on if Ray Train's own controller has died
            self._warm_actors.mark_controller_lost()
        node_placement.remove_placement_groups(self._earlier_groups, self.workers)


def _kill(processes: Iterable[Process]) -> None:
    for process in processes:
        process.kill()
