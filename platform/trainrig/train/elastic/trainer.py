"""Carries out the supervisor's decisions with Ray Train.

Ray's part is kept small: it starts a worker group of fixed size and reports when a worker dies.
`supervise` decides the number of workers, the step to resume from, and when to leave.
"""

import contextlib
import logging
import re
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from trainrig import hardware
from trainrig.errors import ClusterLost, ConfigError
from trainrig.parallel.precision import Precision
from trainrig.processes.fork_server import ServerAddress
from trainrig.processes.heartbeats import Heartbeat
from trainrig.processes.stop_file import StopRequests
from trainrig.ray_runtime import ray_local, ray_pools, ray_private, worker_space
from trainrig.ray_runtime.node_placement import AutoscalerRequest, name_actor
from trainrig.ray_runtime.ray_session import join
from trainrig.train.elastic.coordinator import Coordinator, RankTask
from trainrig.train.elastic.ray_attempt import RayAttempt
from trainrig.train.elastic.restart_policy import Failure, WorkerNode
from trainrig.train.elastic.scoring_tasks import ScoringTasks
from trainrig.train.elastic.supervise import AttemptHandle, TrainingResult, supervise
from trainrig.train.elastic.worker_group import (
    WorkerGroup,
    find_idle_surplus,
    get_fork_servers,
    get_warm_actors,
)
from trainrig.train.run.run_folder import RunFolder, TrainingAttempt
from trainrig.train.run_file.worker_settings import WorkerBounds, parse_bounds
from trainrig.train.training_job import ExtraActors, TrainingJob

log = logging.getLogger(__name__)

ENDS_WITHIN = 3.0  # s for calls to an unresponsive Ray cluster
MAX_CONCURRENT_CALLS = 100_000  # concurrent calls of the coordinator: two of each agent
CONCURRENT_PROBES = 64  # endpoints probed at the same time


def check_fit(
    workers: int | tuple[int, int],
    actors: ExtraActors | None = None,
    wait: float = worker_space.JOIN_SECONDS,
    what: str = "workers",
) -> None:
    """Wait until Ray can run the fewest workers, now or after scaling up. Joins or starts Ray.

    Raises ConfigError if they never fit, and ClusterError if nodes that may join a cluster without
    an autoscaler do not do so within `wait` seconds.

    Args:
        workers: number of workers, or its limits.
        actors: actors that must fit in addition.
        wait: seconds that nodes may take to join.
        what: name of the workers in messages.
    """
    join()
    worker_space.wait_until_fit(lambda: _find_lack(workers, actors, what), wait)


def _find_lack(workers: int | tuple[int, int], actors: ExtraActors | None, what: str) -> str | None:
    """Return why the fewest workers and actors do not fit; None if they do."""
    pools = ray_pools.find_pools()
    least = parse_bounds(workers).least
    least_actors = actors.bounds.least if actors else 0
    need = _find_need(pools)
    if lack := worker_space.describe_lack(least, need, what):
        return lack
    found = ray_pools.find_capacity(need, {}, pools)
    room = max(found.live, found.later or 0)
    if not least_actors or found.later is None or least + least_actors <= room:
        return None
    left = f"set rollouts.actors = {room - least} or fewer" if room > least else "leave it out"
    return (
        f"rollouts.actors: Ray has space for {room} processes, not for {least} workers and "
        f"{least_actors} actors in all; {left}, or add nodes"
    )


def warn_of_emulation(precision: Precision) -> None:
    """Log a warning if workers would emulate a dtype that CPUs like this machine's do not have.

    Raises ConfigError for a dtype that no CPU can emulate.
    """
    slow = precision.compute == "bfloat16" and not hardware.cpu_has_bfloat16()
    if precision.compute == "float8" and not ray_pools.contains_gpus(ray_pools.find_pools()):
        raise ConfigError(
            "training.precision.compute = 'float8' needs an NVIDIA Ada, Hopper or newer, "
            "but there are only CPUs; use 'bfloat16'"
        )
    if slow and not ray_pools.contains_gpus(ray_pools.find_pools()):
        log.warning("training.precision: %s", hardware.NO_BFLOAT16)


def run(job: TrainingJob, workers: int | tuple[int, int]) -> TrainingResult:
    """Train `job` to its last step on `workers` Ray workers, restarting after failures.

    Raises InputError for a problem that the user must fix; ClusterError if workers fail more often
    than the job allows; Unfinished if asked to stop.
    """
    actors = job.extra_actors
    check_fit(workers, actors, job.training.faults.wait_for_nodes)
    wanted = job.training.bound_workers(workers)
    most_actors = actors.bounds.most if actors else 0
    with (
        StopRequests(job.folder) as stop,
        contextlib.closing(RayCluster(wanted, most_actors, _name_run(job.folder))) as cluster,
        _open_pool(job, cluster),
        ScoringTasks(job, wanted.most + most_actors) as scoring,
    ):
        result = supervise(job, wanted, cluster, stop)
        scoring.finish(stop)
        return result


def _name_run(folder: str) -> str:
    """Return the last part of the path of a run's folder, in characters that Ray takes."""
    return re.sub(r"[^\w.]+", "-", folder.rstrip("/").rpartition("/")[2]) or "run"


def _open_pool(
    job: TrainingJob, cluster: "RayCluster"
) -> contextlib.AbstractContextManager[object]:
    """Return the pool of the job's actors, to be entered; it is empty if the job has none."""
    if job.extra_actors is None:
        return contextlib.nullcontext()
    need = _find_need(ray_pools.find_pools())
    return job.extra_actors.open_pool(job, need, cluster.count_room_for_actors)


def _find_need(pools: Sequence[ray_pools.NodePool] | None) -> ray_pools.Need:
    """Return the resources of one worker: with a GPU where there are some or may be later."""
    return {"CPU": 1, "GPU": 1} if ray_pools.contains_gpus(pools) else {"CPU": 1}


def start_fork_servers() -> dict[str, ServerAddress]:
    """Start a fork server on each node, and return their addresses by node id.

    The nodes are those of the Ray cluster that this process is connected to. The servers import
    what training needs.
    """
    import ray

    here = ray.get_runtime_context()
    servers = get_fork_servers(here.get_node_id(), here.get_job_id())
    nodes: Any = ray.nodes()  # type: ignore[no-untyped-call]
    servers.start_missing(node["NodeID"] for node in nodes if node["Alive"])
    addresses = ray.get([server.get_address.remote() for server in servers.by_node.values()])
    return dict(zip(servers.by_node, addresses, strict=True))


class RayCluster:
    """Ray cluster that this process is connected to, and its successor if it is lost."""

    def __init__(self, wanted: WorkerBounds, most_actors: int = 0, run: str = "run") -> None:
        """Connect to Ray.

        Args:
            wanted: limits of the number of workers.
            most_actors: the largest number of extra actors, which need nodes too.
            run: name of the run, for Ray's lists of actors and of training runs.
        """
        self._run = run
        self._wanted = wanted
        self._most_actors = most_actors
        self._avoid = frozenset[str]()  # node ids that the last attempt avoids
        self._faulty = frozenset[str]()  # node ids for which replacements are requested
        self._lost: ClusterLost | None = None  # set while the cluster is lost
        self._ours = False  # True if the lost cluster was started for this process
        self._attempt: RayAttempt | None = None  # the last attempt
        self._connect()

    def _connect(self) -> None:
        import ray

        pools = ray_pools.find_pools()
        self._need = _find_need(pools)
        self._most = self._wanted.most
        self._what = "GPU" if "GPU" in self._need else "CPU"
        self._scaled = pools != []  # True if the autoscaler can add and remove nodes
        self._autoscaler_request = AutoscalerRequest()
        actor: Any = ray.remote(Coordinator)
        # Ray restarts it when its process dies; the next poll sends our state again.
        self._coordinator = actor.options(
            name=name_actor("coordinator", self._run),
            num_cpus=0,
            resources=ray_pools.ON_HEAD,
            max_restarts=-1,
            max_concurrency=MAX_CONCURRENT_CALLS,
        ).remote()
        here = ray.get_runtime_context()
        self._group: WorkerGroup | None = None  # the last one started
        # ids of the nodes that were usable when last listed
        self._fit: frozenset[str] = frozenset()
        self._warm_actors = get_warm_actors(here.get_node_id(), here.get_job_id())

    def abandon(self, lost: ClusterLost) -> None:
        """End what is left of the lost cluster; see TrainingCluster."""
        ray_local.keep_logs()
        self._lost = lost
        self._ours = ray_local.end_own()
        if self._attempt and not self._ours:
            aside = threading.Thread(target=self._attempt.end_soon, name="abandon", daemon=True)
            aside.start()
            aside.join(ENDS_WITHIN)
        self._attempt = None

    def restart_if_lost(self) -> None:
        """Start a new cluster if the lost one was ours; see TrainingCluster."""
        if self._lost is None:
            return
        if not self._ours:
            raise self._lost
        join()
        self._connect()
        self._lost = None

    def list_nodes(self) -> Sequence[WorkerNode]:
        """Return the nodes that respond; see TrainingCluster.

        Raises ClusterLost also for a GCS that survives its raylet, which lists no nodes.
        """
        found = ray_local.call_while_ray_lives(self._list_nodes)
        ray_local.raise_if_lost()
        return found

    def replace(self, faulty: frozenset[str]) -> None:
        """Request more nodes in place of `faulty`, with the next request; see TrainingCluster."""
        self._faulty = faulty

    def start(
        self,
        job: TrainingJob,
        attempt: TrainingAttempt,
        resume_from: str | None,
        workers: int,
        avoid: frozenset[str],
    ) -> AttemptHandle:
        """Start an attempt; see TrainingCluster.

        It reuses the worker group of the attempt before if that stands by on suitable nodes.
        """
        self._avoid = avoid
        self._attempt = ray_local.call_while_ray_lives(
            self._start, job, attempt, resume_from, workers
        )
        return Watched(self._attempt)

    def close(self) -> None:
        """Release the workers, and cancel the request for nodes."""
        with contextlib.suppress(ClusterLost):
            ray_local.call_while_ray_lives(self._close)

    def count_room_for_actors(self) -> int:
        """Return the number of free places, less those that the run's workers may still need."""
        unfit = {*ray_private.list_draining_nodes(), *self._avoid}
        free = ray_private.list_free_resources()
        places = [
            int(resources.get(self._what, 0))
            for node, resources in free.items()
            if node not in unfit
        ]
        ours = sum(self._group.count_agents().values()) if self._group else 0
        return sum(places) - (self._most - ours)

    def _list_nodes(self) -> Sequence[WorkerNode]:
        """Return the nodes that respond.

        Each whole CPU or GPU that is free or ours is a place for one worker.
        """
        import ray

        draining = ray_private.list_draining_nodes()
        free = ray_private.list_free_resources()
        ours = self._group.count_agents() if self._group else Counter[str]()

        def node(id_: str, places: int) -> WorkerNode:
            capacity = int(free.get(id_, {}).get(self._what, 0)) + ours[id_]
            return WorkerNode(id_, capacity, id_ in draining, places)

        found = [
            found_node
            for found_node in ray.nodes()  # type: ignore[no-untyped-call]
            if found_node["Alive"] and found_node["Resources"].get(self._what, 0) >= 1
        ]
        # Ray lists a dead node for some seconds more.
        nodes = [
            node(found_node["NodeID"], int(found_node["Resources"][self._what]))
            for found_node, reachable in zip(found, _probe(_list_endpoints(found)), strict=True)
            if reachable
        ]
        self._fit = frozenset(node.id for node in nodes if not node.draining)
        beyond = set[str]()
        if self._scaled:
            lost = sum(node.slots for node in nodes if node.id in self._faulty)
            self._request_nodes(lost)
            beyond = find_idle_surplus(nodes, ours, self._most, self._avoid)
            self._warm_actors.fork_servers.end(beyond)
        self._warm_actors.fork_servers.start_missing(
            node.id for node in nodes if node.id not in beyond
        )
        return nodes

    def _request_nodes(self, lost: int = 0) -> None:
        """Request all nodes except the nodes of a running worker group, which Ray Train requests.

        `lost`: places on faulty nodes, which are requested in addition.
        """
        group = self._group
        running = group.workers if group and not group.is_over() else 0
        wanted = self._most + self._most_actors + lost - running
        self._autoscaler_request.request(max(0, wanted), self._need)

    def _close(self) -> None:
        import ray

        if not ray.is_initialized():
            return
        if self._group and not self._group.is_over():
            self._group.leave()
        if self._scaled:
            self._autoscaler_request.cancel()
            self._warm_actors.fork_servers.end(list(self._warm_actors.fork_servers.by_node))

    def _start(
        self, job: TrainingJob, attempt: TrainingAttempt, resume_from: str | None, workers: int
    ) -> RayAttempt:
        from ray import cloudpickle

        work: bytes = cloudpickle.dumps(RankTask(job, attempt, resume_from))  # type: ignore[no-untyped-call]
        folder = RunFolder(job.folder)
        worker_group = self._group
        if worker_group and worker_group.can_run(workers, self._fit - self._avoid):
            attempt_handle = RayAttempt(
                folder, attempt, self._coordinator, worker_group, _all_reachable
            )
            attempt_handle.assign(work)
            return attempt_handle
        if worker_group and not worker_group.is_over():
            worker_group.leave()
        config = {
            "work": work,
            "attempt": attempt.number,
            "coordinator": self._coordinator,
            "fork_servers": dict(self._warm_actors.fork_servers.by_node),
        }
        gpus = self._what == "GPU"
        nested = job.training.parallel.nest(workers)
        self._group = WorkerGroup(
            self._warm_actors,
            self._coordinator,
            config,
            workers,
            gpus,
            self._avoid,
            nested,
            self._run,
        )
        if self._scaled:
            self._request_nodes()
        return RayAttempt(folder, attempt, self._coordinator, self._group, _all_reachable)


class Watched:
    """AttemptHandle that raises ClusterLost if Ray is lost during a call."""

    def __init__(self, attempt_handle: RayAttempt) -> None:
        self._attempt = attempt_handle

    def poll_end(self, wait: float) -> bool:
        """Wait for the end of the attempt; see AttemptHandle."""
        return ray_local.call_while_ray_lives(self._attempt.poll_end, wait)

    def find_failure(self) -> Failure | None:
        """Return why the attempt failed; see AttemptHandle.

        Raises ClusterLost if Ray is lost: that is then the cause, which Ray reports late.
        """
        failure = ray_local.call_while_ray_lives(self._attempt.find_failure)
        if failure:
            ray_local.raise_if_lost(surely=True)
        return failure

    def heartbeats(self) -> Mapping[int, Heartbeat]:
        """Return the newest heartbeat of each rank; see AttemptHandle."""
        return self._attempt.heartbeats()

    def ask_to_stop(self) -> None:
        """Ask the ranks to stop; see AttemptHandle."""
        ray_local.call_while_ray_lives(self._attempt.ask_to_stop)

    def kill(self) -> None:
        """Kill the ranks; see AttemptHandle."""
        ray_local.call_while_ray_lives(self._attempt.kill)

    def release(self) -> None:
        """End what is left of a failed attempt; see AttemptHandle."""
        ray_local.keep_logs()
        ray_local.call_while_ray_lives(self._attempt.release)


def _all_reachable(nodes: Set[str]) -> bool:
    """Return whether all `nodes` are alive and reachable."""
    import ray

    there: Any = ray.nodes()  # type: ignore[no-untyped-call]
    found = [node for node in there if node["Alive"] and node["NodeID"] in nodes]
    return len(found) == len(nodes) and all(_probe(_list_endpoints(found)))


def _list_endpoints(nodes: Iterable[Mapping[str, Any]]) -> list[tuple[str, int]]:
    """Return the address and port that each of `nodes` listens on, as Ray lists them."""
    return [(node["NodeManagerAddress"], node["NodeManagerPort"]) for node in nodes]


def _probe(endpoints: Sequence[tuple[str, int]]) -> list[bool]:
    """Return whether each of `endpoints`, address and port, accepts a connection.

    Many are probed at the same time: many machines may vanish together, and probing them one after
    the other would wait for each timeout.
    """
    with ThreadPoolExecutor(min(CONCURRENT_PROBES, len(endpoints)) or 1) as threads:
        return list(threads.map(ray_local.is_reachable, endpoints))
