"""Runs on Ray: what the supervisor decides, done with Ray Train.

Ray is told as little as can be. It starts a group of workers of fixed size and says when one of
them died; how many there should be, from which step, and when to leave, is decided in `supervise`.
"""

import contextlib
import logging
import os
import pickle
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from trainrig.ray_pools import ON_THE_HEAD, Need, Pool, has_gpus, known_pools
from trainrig.ray_session import WORKER_ENVIRONMENT, join
from trainrig.ray_session import check_fit as check_room
from trainrig.train.causes import cause, last_line
from trainrig.train.control import Control
from trainrig.train.decisions import Failure, Node
from trainrig.train.keeper import RankDied, RankRaised
from trainrig.train.rank import Work
from trainrig.train.run_folder import Attempt, RunFolder
from trainrig.train.spares import Spares, idle_beyond_need, only_on, servers_of, spares_of
from trainrig.train.state import Job
from trainrig.train.stop import StopRequests
from trainrig.train.supervise import Outcome, supervise
from trainrig.train.watch import Beat
from trainrig.train.wish import Wish
from trainrig.train.workers import Bounds, bounds

__all__ = ["Outcome", "check_fit", "fork_servers", "run"]

log = logging.getLogger(__name__)
KEEPERS_TOO = 2.0  # s after their ranks were killed: then the keepers are
ANSWER = 1.0  # s that a node has to answer a knock at its door
KNOCKS = 64  # doors knocked at together


def check_fit(workers: int | tuple[int, int]) -> None:
    """Raise ConfigError if Ray, which is joined or started for it, has no room for the fewest, and
    will have none."""
    join()
    pools = known_pools()
    check_room(bounds(workers).least, _need(pools), "workers", pools)


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
    """The Ray that this process is connected to."""

    def __init__(self, wanted: Bounds) -> None:
        import ray

        pools = known_pools()
        self._need, self._most = _need(pools), wanted.most
        self._what = "GPU" if "GPU" in self._need else "CPU"
        self._scaled = pools != []  # nodes may come and go at its word
        self._wish = Wish()
        actor: Any = ray.remote(Control)
        # Ray starts it again when its process dies; our next look restores the stop flag.
        self._control = actor.options(num_cpus=0, resources=ON_THE_HEAD, max_restarts=-1).remote()
        here = ray.get_runtime_context()
        self._group: RayGroup | None = None  # the last that was started
        self._spares = spares_of(here.get_node_id(), here.get_job_id())

    def nodes(self) -> Sequence[Node]:
        """Those that answer now, with a place for a worker in each whole CPU or GPU that is free
        or ours."""
        import ray
        from ray._private.state import state

        draining = state.get_draining_nodes() or {}
        free = state.available_resources_per_node()  # type: ignore[no-untyped-call]
        ours = self._group.places() if self._group else Counter[str]()

        def node(id_: str, places: int) -> Node:
            room = int(free.get(id_, {}).get(self._what, 0)) + ours[id_]
            return Node(id_, room, id_ in draining, places)

        found = [
            each
            for each in ray.nodes()  # type: ignore[no-untyped-call]
            if each["Alive"] and each["Resources"].get(self._what, 0) >= 1
        ]
        # Ray believes in a dead node for some seconds more.
        doors = [(each["NodeManagerAddress"], each["NodeManagerPort"]) for each in found]
        nodes = [
            node(each["NodeID"], int(each["Resources"][self._what]))
            for each, answers in zip(found, _answering(doors), strict=True)
            if answers
        ]
        beyond = set[str]()
        if self._scaled:
            self._wish.say(self._most, self._need)
            beyond = idle_beyond_need(nodes, ours, self._most)
            self._spares.fork_servers.leave(beyond)
        self._spares.fork_servers.serve(node.id for node in nodes if node.id not in beyond)
        return nodes

    def close(self) -> None:
        """Ask for no nodes any more, and hold none."""
        import ray

        if self._scaled and ray.is_initialized():
            self._wish.take_back()
            self._spares.fork_servers.leave(list(self._spares.fork_servers.by_node))

    def start(
        self, job: Job, attempt: Attempt, resume_from: str | None, workers: int
    ) -> "RayGroup":
        """Start a group; returns before it is up."""
        from ray import cloudpickle

        from trainrig.train.conductor import Group

        group = Group(
            name=f"attempt-{attempt.number:04d}",
            workers=workers,
            gpus=self._what == "GPU",
            environment=WORKER_ENVIRONMENT,
        )
        config = {
            "work": cloudpickle.dumps(Work(job, attempt, resume_from)),  # type: ignore[no-untyped-call]
            "attempt": attempt.number,
            "control": self._control,
            "fork_servers": dict(self._spares.fork_servers.by_node),
        }
        self._group = RayGroup(RunFolder(job.folder), attempt, self._control, self._spares)
        self._group.begin(group, config)
        return self._group


def _answering(doors: Sequence[tuple[str, int]]) -> list[bool]:
    """Whether somebody opens each of `doors`, address and port: knocked at many at a time, as the
    machines that vanished in a storm would else be waited for one after the other."""
    with ThreadPoolExecutor(min(KNOCKS, len(doors)) or 1) as threads:
        return list(threads.map(_answers, doors))


def _answers(door: tuple[str, int]) -> bool:
    try:
        socket.create_connection(door, timeout=ANSWER).close()
    except OSError:
        return False
    return True


class RayGroup:
    """One attempt's workers: one `fit()` of Ray Train, waited for in a thread of its own."""

    def __init__(self, folder: RunFolder, attempt: Attempt, control: Any, spares: Spares) -> None:
        """`control`: the handle of the Control actor."""
        self._folder, self._attempt = folder, attempt
        self._control, self._spares = control, spares
        self._stop = False
        self._asked: Any = None  # the look that is on its way
        self._beats: Mapping[int, Beat] = {}
        self._killed: set[int] = set()  # pids
        self._killed_since: float | None = None
        self._over = threading.Event()
        self._error: BaseException | None = None
        self._conductor = spares.conductor(self._over)

    def begin(self, group: Any, config: Mapping[str, Any]) -> None:
        """Let the conductor start the workers of `group`."""
        import ray

        def wait() -> None:
            try:
                self._error = ray.get(self._conductor.fit.remote(group, config))
            except BaseException as error:
                self._error = error
            finally:
                self._over.set()

        threading.Thread(target=wait, name="fit", daemon=True).start()

    def places(self) -> Counter[str]:
        """How many of its workers run on each node, as far as they have said so."""
        return Counter(() if self._over.is_set() else (b.node for b in self._beats.values()))

    def ended(self, wait: float) -> bool:
        """See Group."""
        return self._over.wait(wait)

    def failure(self) -> Failure | None:
        """See Group."""
        from ray.train import TrainingFailedError
        from ray.train.v2._internal.exceptions import WorkerHealthCheckFailedError
        from ray.train.v2.api.exceptions import WorkerGroupError

        if self._error is None:
            return None
        step = max((beat.step for beat in self._beats.values()), default=0)
        step = max(step, self._attempt.resumed_step)
        if isinstance(self._error, WorkerGroupError):
            failures = self._error.worker_failures
            lost = {
                rank: "killed, out of memory, or its node lost"
                for rank, error in failures.items()
                if isinstance(error, WorkerHealthCheckFailedError)
            }
            dead = {r: str(error) for r, error in failures.items() if isinstance(error, RankDied)}
            raised = {rank: _own(error) for rank, error in failures.items()}
            return cause(raised, lost | dead, self._raised(), step)
        if isinstance(self._error, TrainingFailedError) or self._conductor_died:
            problem = f"Ray's controller of the attempt failed: {last_line(self._error)}"
            return Failure(problem, "Ray", step)
        raise self._error

    @property
    def _conductor_died(self) -> bool:
        import ray.exceptions

        raised_there = ray.exceptions.RayTaskError
        error = self._error
        return isinstance(error, ray.exceptions.RayError) and not isinstance(error, raised_there)

    def beats(self) -> Mapping[int, Beat]:
        """See Group. What the last look brought; another is sent at once."""
        import ray

        if self._asked is not None and ray.wait([self._asked], timeout=0)[0]:
            self._beats = self._answer() or self._beats
            self._asked = None
        if self._asked is None:
            self._asked = self._control.look.remote(self._attempt.number, self._stop)
        return self._beats

    def _answer(self) -> Mapping[int, Beat]:
        import ray

        try:
            beats: Mapping[int, Beat] = ray.get(self._asked)
        except ray.exceptions.RayActorError:
            return {}  # Ray is starting another
        return beats

    def ask_to_stop(self) -> None:
        """See Group."""
        self._stop = True
        self._asked = self._control.look.remote(self._attempt.number, True)

    def kill(self) -> None:
        """See Group. The ranks first: a keeper that does not say so soon stands still as well."""
        import ray

        here = ray.get_runtime_context().get_node_id()
        now = time.monotonic()
        self._killed_since = self._killed_since or now
        late = now - self._killed_since > KEEPERS_TOO
        by_node: dict[str, set[int]] = {}
        for beat in self._beats.values():
            pids = beat.pids if late else beat.pids[:1]
            by_node.setdefault(beat.node, set()).update(set(pids) - self._killed)
        for node, left in by_node.items():
            self._killed |= left
            if node == here:
                _kill(left)
            elif left:
                _kill_there(node, left)

    def release(self) -> None:
        """See Group. What a killed conductor leaves reserved the next attempt would wait for."""
        import ray
        from ray._private.state import state
        from ray._raylet import PlacementGroupID
        from ray.core.generated import gcs_pb2
        from ray.util import remove_placement_group
        from ray.util.placement_group import PlacementGroup

        waits = not self._over.is_set()  # for workers that will never answer
        if waits:
            ray.kill(self._conductor)
        if waits or self._conductor_died:
            self._spares.conductor_lost()
        table: Any = gcs_pb2.PlacementGroupTableData  # type: ignore[attr-defined]
        for written in state._connect_and_get_accessor().get_placement_group_table():
            group = table.FromString(written)
            own = group.creator_actor_id == self._conductor._actor_id.binary()
            if own and group.state != table.REMOVED:
                remove_placement_group(PlacementGroup(PlacementGroupID(group.placement_group_id)))

    def _raised(self) -> Mapping[int, int]:
        """Steps done by each rank when it raised."""
        return {event["rank"]: event["step"] for event in self._events("worker_raised")}

    def _events(self, name: str) -> list[dict[str, Any]]:
        return [
            event
            for event in self._folder.events()
            if event["event"] == name and event["attempt"] == self._attempt.number
        ]


def _kill(pids: Iterable[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def _kill_there(node: str, pids: Iterable[int]) -> None:
    import ray

    ray.remote(_kill).options(num_cpus=0, scheduling_strategy=only_on(node)).remote(pids)


def _own(error: Exception) -> Exception:
    """What the rank itself raised, if `error` carries that."""
    if not isinstance(error, RankRaised):
        return error
    try:
        own: Exception = pickle.loads(error.error)
    except Exception:  # made of what this machine lacks
        return RuntimeError(str(error))
    return own
