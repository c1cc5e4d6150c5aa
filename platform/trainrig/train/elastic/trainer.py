"""Runs on Ray: what the supervisor decides, done with Ray Train.

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
from trainrig.errors import ClusterLost
from trainrig.parallel.precision import Precision
from trainrig.processes.heartbeats import Beat
from trainrig.processes.stop_file import StopRequests
from trainrig.ray_runtime.ray_local import answers, end_own, keep_logs, while_ray_lives
from trainrig.ray_runtime.ray_pools import ON_THE_HEAD, Need, Pool, has_gpus, known_pools
from trainrig.ray_runtime.ray_session import check_fit as check_room
from trainrig.ray_runtime.ray_session import join
from trainrig.train.elastic.autoscaler_request import Wish
from trainrig.train.elastic.coordinator import Control
from trainrig.train.elastic.rank import Work
from trainrig.train.elastic.ray_attempt import RayGroup
from trainrig.train.elastic.restart_policy import Failure, Node
from trainrig.train.elastic.supervise import Group, Outcome, supervise
from trainrig.train.elastic.warm_actors import idle_beyond_need, servers_of, spares_of
from trainrig.train.elastic.worker_group import Crew
from trainrig.train.job import Job
from trainrig.train.run.run_folder import Attempt, RunFolder
from trainrig.train.worker_bounds import Bounds, bounds

__all__ = ["Outcome", "check_fit", "fork_servers", "run", "warn_of_emulation"]

log = logging.getLogger(__name__)

ENDS_WITHIN = 3.0  # s for what is asked of a Ray that was lost, as far as it still does anything
MOST_WAITING = 100_000  # calls of the post office: two of each keeper
KNOCKS = 64  # doors knocked at together


def check_fit(workers: int | tuple[int, int]) -> None:
    """Raise ConfigError if Ray, which is joined or started for it, has no room for the fewest, and
    will have none."""
    join()
    pools = known_pools()
    check_room(bounds(workers).least, _need(pools), "workers", pools)


def warn_of_emulation(precision: Precision) -> None:
    """Say so if workers will compute on CPUs like this machine's, in numbers that it has not."""
    slow = precision.compute == "bfloat16" and not hardware.cpu_has_bfloat16()
    if slow and not has_gpus(known_pools()):
        log.warning("training.precision: %s", hardware.NO_BFLOAT16)


def run(job: Job, workers: int | tuple[int, int]) -> Outcome:
    """Train `job` to its last step on `workers` Ray workers, going on after faults.

    Raises InputError for what the user must fix, ClusterError when workers fail more often than
    the job allows, Unfinished when asked to stop.
    """
    check_fit(workers)
    wanted = bounds(workers)
    with StopRequests(job.folder) as stop, contextlib.closing(RayCluster(wanted)) as cluster:
        return supervise(job, wanted, cluster, stop)


def _need(pools: Sequence[Pool] | None) -> Need:
    """What one worker takes: an accelerator where there are some, or may be."""
    return {"CPU": 1, "GPU": 1} if has_gpus(pools) else {"CPU": 1}


def fork_servers() -> dict[str, str]:
    """For each node of the Ray that this process is connected to, the address of a fork server
    there that will have imported what training needs."""
    import ray

    here = ray.get_runtime_context()
    servers = servers_of(here.get_node_id(), here.get_job_id())
    nodes: Any = ray.nodes()  # type: ignore[no-untyped-call]
    servers.serve(node["NodeID"] for node in nodes if node["Alive"])
    addresses = ray.get([server.address.remote() for server in servers.by_node.values()])
    return dict(zip(servers.by_node, addresses, strict=True))


class RayCluster:
    """The Ray that this process is connected to, and the one that follows it if it is lost."""

    def __init__(self, wanted: Bounds) -> None:
        self._wanted = wanted
        self._lost: ClusterLost | None = None  # until there is another
        self._ours = False  # that one: it was started for this process
        self._group: RayGroup | None = None  # of the last attempt
        self._connect()

    def _connect(self) -> None:
        import ray

        pools = known_pools()
        self._need, self._most = _need(pools), self._wanted.most
        self._what = "GPU" if "GPU" in self._need else "CPU"
        self._scaled = pools != []  # nodes may come and go at its word
        self._wish = Wish()
        actor: Any = ray.remote(Control)
        # Ray starts it again when its process dies; our next look says again what we want.
        self._control = actor.options(
            num_cpus=0, resources=ON_THE_HEAD, max_restarts=-1, max_concurrency=MOST_WAITING
        ).remote()
        here = ray.get_runtime_context()
        self._crew: Crew | None = None  # the last that was started
        self._fit: frozenset[str] = frozenset()  # nodes to be on, when they were last looked at
        self._spares = spares_of(here.get_node_id(), here.get_job_id())

    def abandon(self, lost: ClusterLost) -> None:
        """See Cluster."""
        keep_logs()
        self._lost, self._ours = lost, end_own()
        if self._group and not self._ours:
            aside = threading.Thread(target=self._group.end_soon, name="abandon", daemon=True)
            aside.start()
            aside.join(ENDS_WITHIN)
        self._group = None

    def begin_again(self) -> None:
        """See Cluster."""
        if self._lost is None:
            return
        if not self._ours:
            raise self._lost
        join()
        self._connect()
        self._lost = None

    def nodes(self) -> Sequence[Node]:
        """See Cluster."""
        return while_ray_lives(self._nodes)

    def start(self, job: Job, attempt: Attempt, resume_from: str | None, workers: int) -> Group:
        """See Cluster. By the crew of the attempt before, if that stands by where it should."""
        self._group = while_ray_lives(self._start, job, attempt, resume_from, workers)
        return Watched(self._group)

    def close(self) -> None:
        """Ask for no nodes any more, and hold none."""
        with contextlib.suppress(ClusterLost):
            while_ray_lives(self._close)

    def _nodes(self) -> Sequence[Node]:
        """Those that answer now, with a place for a worker in each whole CPU or GPU that is free
        or ours."""
        import ray
        from ray._private.state import state

        draining = state.get_draining_nodes() or {}
        free = state.available_resources_per_node()  # type: ignore[no-untyped-call]
        ours = self._crew.places() if self._crew else Counter[str]()

        def node(id_: str, places: int) -> Node:
            room = int(free.get(id_, {}).get(self._what, 0)) + ours[id_]
            return Node(id_, room, id_ in draining, places)

        found = [
            each
            for each in ray.nodes()  # type: ignore[no-untyped-call]
            if each["Alive"] and each["Resources"].get(self._what, 0) >= 1
        ]
        # Ray believes in a dead node for some seconds more.
        nodes = [
            node(each["NodeID"], int(each["Resources"][self._what]))
            for each, answers in zip(found, _answering(_doors(found)), strict=True)
            if answers
        ]
        self._fit = frozenset(node.id for node in nodes if not node.draining)
        beyond = set[str]()
        if self._scaled:
            self._wish.say(self._most, self._need)
            beyond = idle_beyond_need(nodes, ours, self._most)
            self._spares.fork_servers.leave(beyond)
        self._spares.fork_servers.serve(node.id for node in nodes if node.id not in beyond)
        return nodes

    def _close(self) -> None:
        import ray

        if not ray.is_initialized():
            return
        if self._crew and not self._crew.over():
            self._crew.leave()
        if self._scaled:
            self._wish.take_back()
            self._spares.fork_servers.leave(list(self._spares.fork_servers.by_node))

    def _start(self, job: Job, attempt: Attempt, resume_from: str | None, workers: int) -> RayGroup:
        from ray import cloudpickle

        work: bytes = cloudpickle.dumps(Work(job, attempt, resume_from))  # type: ignore[no-untyped-call]
        folder, crew = RunFolder(job.folder), self._crew
        if crew and crew.can(workers, self._fit):
            group = RayGroup(folder, attempt, self._control, crew, _answer)
            group.order(work)
            return group
        if crew and not crew.over():
            crew.leave()
        config = {
            "work": work,
            "attempt": attempt.number,
            "control": self._control,
            "fork_servers": dict(self._spares.fork_servers.by_node),
        }
        gpus = self._what == "GPU"
        self._crew = Crew(self._spares, self._control, config, workers, gpus)
        return RayGroup(folder, attempt, self._control, self._crew, _answer)


class Watched:
    """A group of a Ray that may be lost while something is asked of it."""

    def __init__(self, group: RayGroup) -> None:
        self._group = group

    def ended(self, wait: float) -> bool:
        """See Group."""
        return while_ray_lives(self._group.ended, wait)

    def failure(self) -> Failure | None:
        """See Group."""
        return while_ray_lives(self._group.failure)

    def beats(self) -> Mapping[int, Beat]:
        """See Group."""
        return self._group.beats()

    def ask_to_stop(self) -> None:
        """See Group."""
        while_ray_lives(self._group.ask_to_stop)

    def kill(self) -> None:
        """See Group."""
        while_ray_lives(self._group.kill)

    def release(self) -> None:
        """See Group."""
        keep_logs()
        while_ray_lives(self._group.release)


def _answer(nodes: Set[str]) -> bool:
    """Whether those `nodes` are all there."""
    import ray

    there: Any = ray.nodes()  # type: ignore[no-untyped-call]
    found = [each for each in there if each["Alive"] and each["NodeID"] in nodes]
    return len(found) == len(nodes) and all(_answering(_doors(found)))


def _doors(nodes: Iterable[Mapping[str, Any]]) -> list[tuple[str, int]]:
    """At which `nodes`, as Ray tells of them, can be knocked."""
    return [(each["NodeManagerAddress"], each["NodeManagerPort"]) for each in nodes]


def _answering(doors: Sequence[tuple[str, int]]) -> list[bool]:
    """Whether somebody opens each of `doors`, address and port: knocked at many at a time, as the
    machines that vanished in a storm would else be waited for one after the other."""
    with ThreadPoolExecutor(min(KNOCKS, len(doors)) or 1) as threads:
        return list(threads.map(answers, doors))
