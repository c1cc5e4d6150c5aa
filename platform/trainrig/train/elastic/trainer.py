"""Carries out the decisions of the supervisor with Ray Train.

Ray is told as little as can be. It starts a group of workers of fixed size and says when one of
them died; how many there should be, from which step, and when to leave, is decided in `supervise`.
"""

import contextlib
import logging
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
from trainrig.ray_runtime import ray_private
from trainrig.ray_runtime.autoscaler_request import AutoscalerRequest
from trainrig.ray_runtime.ray_local import (
    call_while_ray_lives,
    end_own,
    is_reachable,
    keep_logs,
    raise_if_lost,
)
from trainrig.ray_runtime.ray_pools import (
    ON_HEAD,
    Need,
    NodePool,
    find_capacity,
    find_pools,
    has_gpus,
)
from trainrig.ray_runtime.ray_session import check_fit as check_capacity
from trainrig.ray_runtime.ray_session import join
from trainrig.train.elastic.coordinator import Coordinator
from trainrig.train.elastic.ipc import RankTask
from trainrig.train.elastic.ray_attempt import RayAttempt
from trainrig.train.elastic.restart_policy import Failure, WorkerNode
from trainrig.train.elastic.rollout_actors import RolloutPool
from trainrig.train.elastic.scoring_tasks import ScoringTasks
from trainrig.train.elastic.supervise import AttemptHandle, TrainingResult, supervise
from trainrig.train.elastic.warm_actors import find_idle_surplus, get_fork_servers, get_warm_actors
from trainrig.train.elastic.worker_group import WorkerGroup
from trainrig.train.job import TrainingJob
from trainrig.train.run.run_folder import RunFolder, TrainingAttempt
from trainrig.train.worker_bounds import WorkerBounds, parse_bounds

__all__ = ["TrainingResult", "check_fit", "run", "start_fork_servers", "warn_of_emulation"]

log = logging.getLogger(__name__)

ENDS_WITHIN = 3.0  # s for what is asked of a Ray that was lost, as far as it still does anything
MAX_CONCURRENT_CALLS = 100_000  # calls of the coordinator: two of each agent
CONCURRENT_PROBES = 64  # endpoints probed together


def check_fit(workers: int | tuple[int, int], actors: int | tuple[int, int] = 0) -> None:
    """Raise ConfigError if Ray, which is joined or started for it, has no room for the fewest, and
    will have none; `actors`: of rollouts, beside."""
    join()
    pools = find_pools()
    least, beside, need = parse_bounds(workers).least, parse_bounds(actors).least, _find_need(pools)
    check_capacity(least, need, "workers", pools)
    found = find_capacity(need, {}, pools)
    room = max(found.live, found.later or 0)
    if beside and found.later is not None and least + beside > room:
        left = f"set rollouts.actors = {room - least} or fewer" if room > least else "leave it out"
        raise ConfigError(
            f"rollouts.actors: {beside} beside {least} workers, and Ray has room for {room} in "
            f"all; {left}, or add nodes"
        )


def warn_of_emulation(precision: Precision) -> None:
    """Say so if workers will compute on CPUs like this machine's, in numbers that it has not.

    Raises ConfigError for numbers that no CPU has.
    """
    slow = precision.compute == "bfloat16" and not hardware.cpu_has_bfloat16()
    if precision.compute == "float8" and not has_gpus(find_pools()):
        raise ConfigError(
            "training.precision.compute = 'float8' needs an NVIDIA Ada, Hopper or newer, and there "
            "are CPUs alone; use 'bfloat16'"
        )
    if slow and not has_gpus(find_pools()):
        log.warning("training.precision: %s", hardware.NO_BFLOAT16)


def run(job: TrainingJob, workers: int | tuple[int, int]) -> TrainingResult:
    """Train `job` to its last step on `workers` Ray workers, going on after faults.

    Raises InputError for what the user must fix, ClusterError when workers fail more often than
    the job allows, Unfinished when asked to stop.
    """
    check_fit(workers, job.rollout_actors)
    wanted = job.training.bound_workers(workers)
    with (
        StopRequests(job.folder) as stop,
        contextlib.closing(RayCluster(wanted, parse_bounds(job.rollout_actors).most)) as cluster,
        RolloutPool(job, _find_need(find_pools()), cluster.count_room_beside),
        ScoringTasks(job) as scoring,
    ):
        result = supervise(job, wanted, cluster, stop)
        scoring.finish(stop)
        return result


def _find_need(pools: Sequence[NodePool] | None) -> Need:
    """What one worker takes: an accelerator where there are some, or may be."""
    return {"CPU": 1, "GPU": 1} if has_gpus(pools) else {"CPU": 1}


def start_fork_servers() -> dict[str, ServerAddress]:
    """For each node of the Ray that this process is connected to, the address of a fork server
    there that will have imported what training needs."""
    import ray

    here = ray.get_runtime_context()
    servers = get_fork_servers(here.get_node_id(), here.get_job_id())
    nodes: Any = ray.nodes()  # type: ignore[no-untyped-call]
    servers.serve(node["NodeID"] for node in nodes if node["Alive"])
    addresses = ray.get([server.get_address.remote() for server in servers.by_node.values()])
    return dict(zip(servers.by_node, addresses, strict=True))


class RayCluster:
    """The Ray that this process is connected to, and the one that follows it if it is lost."""

    def __init__(self, wanted: WorkerBounds, beside: int = 0) -> None:
        """`beside`: actors of rollouts, at the most, which need nodes as well."""
        self._wanted, self._beside = wanted, beside
        self._avoid = frozenset[str]()  # nodes, by the last attempt
        self._faulty = frozenset[str]()  # nodes in whose place others are asked for
        self._lost: ClusterLost | None = None  # until there is another
        self._ours = False  # that one: it was started for this process
        self._attempt: RayAttempt | None = None  # of the last attempt
        self._connect()

    def _connect(self) -> None:
        import ray

        pools = find_pools()
        self._need, self._most = _find_need(pools), self._wanted.most
        self._what = "GPU" if "GPU" in self._need else "CPU"
        self._scaled = pools != []  # nodes may come and go at its word
        self._autoscaler_request = AutoscalerRequest()
        actor: Any = ray.remote(Coordinator)
        # Ray starts it again when its process dies; our next look says again what we want.
        self._coordinator = actor.options(
            num_cpus=0, resources=ON_HEAD, max_restarts=-1, max_concurrency=MAX_CONCURRENT_CALLS
        ).remote()
        here = ray.get_runtime_context()
        self._group: WorkerGroup | None = None  # the last that was started
        self._fit: frozenset[str] = frozenset()  # nodes to be on, when they were last looked at
        self._warm_actors = get_warm_actors(here.get_node_id(), here.get_job_id())

    def abandon(self, lost: ClusterLost) -> None:
        """See TrainingCluster."""
        keep_logs()
        self._lost, self._ours = lost, end_own()
        if self._attempt and not self._ours:
            aside = threading.Thread(target=self._attempt.end_soon, name="abandon", daemon=True)
            aside.start()
            aside.join(ENDS_WITHIN)
        self._attempt = None

    def begin_again(self) -> None:
        """See TrainingCluster."""
        if self._lost is None:
            return
        if not self._ours:
            raise self._lost
        join()
        self._connect()
        self._lost = None

    def list_nodes(self) -> Sequence[WorkerNode]:
        """See TrainingCluster. A GCS that outlives its raylet tells of no nodes, and at once."""
        found = call_while_ray_lives(self._list_nodes)
        raise_if_lost()
        return found

    def replace(self, faulty: frozenset[str]) -> None:
        """See TrainingCluster. The next request for nodes asks for as much more."""
        self._faulty = faulty

    def start(
        self,
        job: TrainingJob,
        attempt: TrainingAttempt,
        resume_from: str | None,
        workers: int,
        avoid: frozenset[str],
    ) -> AttemptHandle:
        """See TrainingCluster. By the worker group of the attempt before, if that stands by where
        it should."""
        self._avoid = avoid
        self._attempt = call_while_ray_lives(self._start, job, attempt, resume_from, workers)
        return Watched(self._attempt)

    def close(self) -> None:
        """Ask for no nodes any more, and hold none."""
        with contextlib.suppress(ClusterLost):
            call_while_ray_lives(self._close)

    def count_room_beside(self) -> int:
        """Places that are free, less those that the most workers still lack."""
        unfit = {*ray_private.list_draining_nodes(), *self._avoid}
        free = ray_private.list_free_resources()
        places = [int(each.get(self._what, 0)) for node, each in free.items() if node not in unfit]
        ours = sum(self._group.count_agents().values()) if self._group else 0
        return sum(places) - (self._most - ours)

    def _list_nodes(self) -> Sequence[WorkerNode]:
        """Those that answer now, with a place for a worker in each whole CPU or GPU that is free
        or ours."""
        import ray

        draining = ray_private.list_draining_nodes()
        free = ray_private.list_free_resources()
        ours = self._group.count_agents() if self._group else Counter[str]()

        def node(id_: str, places: int) -> WorkerNode:
            capacity = int(free.get(id_, {}).get(self._what, 0)) + ours[id_]
            return WorkerNode(id_, capacity, id_ in draining, places)

        found = [
            each
            for each in ray.nodes()  # type: ignore[no-untyped-call]
            if each["Alive"] and each["Resources"].get(self._what, 0) >= 1
        ]
        # Ray believes in a dead node for some seconds more.
        nodes = [
            node(each["NodeID"], int(each["Resources"][self._what]))
            for each, reachable in zip(found, _probe(_list_endpoints(found)), strict=True)
            if reachable
        ]
        self._fit = frozenset(node.id for node in nodes if not node.draining)
        beyond = set[str]()
        if self._scaled:
            lost = sum(node.slots for node in nodes if node.id in self._faulty)
            self._autoscaler_request.request(self._most + self._beside + lost, self._need)
            beyond = find_idle_surplus(nodes, ours, self._most, self._avoid)
            self._warm_actors.fork_servers.leave(beyond)
        self._warm_actors.fork_servers.serve(node.id for node in nodes if node.id not in beyond)
        return nodes

    def _close(self) -> None:
        import ray

        if not ray.is_initialized():
            return
        if self._group and not self._group.is_over():
            self._group.leave()
        if self._scaled:
            self._autoscaler_request.cancel()
            self._warm_actors.fork_servers.leave(list(self._warm_actors.fork_servers.by_node))

    def _start(
        self, job: TrainingJob, attempt: TrainingAttempt, resume_from: str | None, workers: int
    ) -> RayAttempt:
        from ray import cloudpickle

        work: bytes = cloudpickle.dumps(RankTask(job, attempt, resume_from))  # type: ignore[no-untyped-call]
        folder, worker_group = RunFolder(job.folder), self._group
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
        gpus, nested = self._what == "GPU", job.training.parallel.nest(workers)
        self._group = WorkerGroup(
            self._warm_actors, self._coordinator, config, workers, gpus, self._avoid, nested
        )
        return RayAttempt(folder, attempt, self._coordinator, self._group, _all_reachable)


class Watched:
    """A group of a Ray that may be lost while something is asked of it."""

    def __init__(self, attempt_handle: RayAttempt) -> None:
        self._attempt = attempt_handle

    def poll_end(self, wait: float) -> bool:
        """See AttemptHandle."""
        return call_while_ray_lives(self._attempt.poll_end, wait)

    def find_failure(self) -> Failure | None:
        """See AttemptHandle. A lost Ray is why whatever runs on it fails, and Ray says so late."""
        failure = call_while_ray_lives(self._attempt.find_failure)
        if failure:
            raise_if_lost(surely=True)
        return failure

    def heartbeats(self) -> Mapping[int, Heartbeat]:
        """See AttemptHandle."""
        return self._attempt.heartbeats()

    def ask_to_stop(self) -> None:
        """See AttemptHandle."""
        call_while_ray_lives(self._attempt.ask_to_stop)

    def kill(self) -> None:
        """See AttemptHandle."""
        call_while_ray_lives(self._attempt.kill)

    def release(self) -> None:
        """See AttemptHandle."""
        keep_logs()
        call_while_ray_lives(self._attempt.release)


def _all_reachable(nodes: Set[str]) -> bool:
    """Whether those `nodes` are all there."""
    import ray

    there: Any = ray.nodes()  # type: ignore[no-untyped-call]
    found = [each for each in there if each["Alive"] and each["NodeID"] in nodes]
    return len(found) == len(nodes) and all(_probe(_list_endpoints(found)))


def _list_endpoints(nodes: Iterable[Mapping[str, Any]]) -> list[tuple[str, int]]:
    """Where those `nodes` listen, as Ray tells of them."""
    return [(each["NodeManagerAddress"], each["NodeManagerPort"]) for each in nodes]


def _probe(endpoints: Sequence[tuple[str, int]]) -> list[bool]:
    """Whether somebody opens each of `endpoints`, address and port: knocked at many at a time, as
    the machines that vanished in a storm would else be waited for one after the other."""
    with ThreadPoolExecutor(min(CONCURRENT_PROBES, len(endpoints)) or 1) as threads:
        return list(threads.map(is_reachable, endpoints))
