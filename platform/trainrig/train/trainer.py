"""Runs on Ray: what the supervisor decides, done with Ray Train.

Ray is told as little as can be. It starts a group of workers of fixed size and says when one of
them died; how many there should be, from which step, and when to leave, is decided in `supervise`.
"""

import logging
import os
import signal
import socket
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from trainrig import storage
from trainrig.ray_session import WORKER_ENVIRONMENT, connect
from trainrig.train.causes import cause, last_line
from trainrig.train.control import ON_THE_HEAD, Control
from trainrig.train.decisions import Failure, Node
from trainrig.train.loop import train
from trainrig.train.run_folder import Attempt, RunFolder
from trainrig.train.state import Job
from trainrig.train.stop import StopRequests
from trainrig.train.supervise import Outcome, supervise
from trainrig.train.watch import Beat, Reporter
from trainrig.train.workers import bounds

__all__ = ["Outcome", "check_fit", "run"]

log = logging.getLogger(__name__)
EXCHANGE = 0.25  # s between two beats that a rank sends: well under the least hang worth finding
ANSWER = 1.0  # s that a node has to answer a knock at its door


def check_fit(workers: int | tuple[int, int]) -> None:
    """Raise ConfigError if Ray, which is joined or started for it, has no room for the fewest."""
    connect(bounds(workers).least, "workers")


def run(job: Job, workers: int | tuple[int, int]) -> Outcome:
    """Train `job` to its last step on `workers` Ray workers, going on after faults.

    Raises InputError for what the user must fix, ClusterError when workers fail more often than
    the job allows, Unfinished when asked to stop.
    """
    check_fit(workers)
    with StopRequests(job.folder) as stop:
        return supervise(job, bounds(workers), RayCluster(), stop)


class RayCluster:
    """The Ray that this process is connected to."""

    def __init__(self) -> None:
        import ray

        resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        self._what = "GPU" if resources.get("GPU", 0) >= 1 else "CPU"
        actor: Any = ray.remote(Control)
        # Ray starts it again when its process dies; our next look restores the stop flag.
        self._control = actor.options(num_cpus=0, resources=ON_THE_HEAD, max_restarts=-1).remote()

    def nodes(self) -> Sequence[Node]:
        """Those that answer now, with a place for a worker in each whole CPU or GPU."""
        import ray
        from ray._private.state import state

        draining = state.get_draining_nodes() or {}
        return [
            Node(each["NodeID"], room, each["NodeID"] in draining)
            for each in ray.nodes()  # type: ignore[no-untyped-call]
            if each["Alive"] and (room := int(each["Resources"].get(self._what, 0)))
            # Ray believes in a dead node for some seconds more.
            if _answers(each["NodeManagerAddress"], each["NodeManagerPort"])
        ]

    def start(
        self, job: Job, attempt: Attempt, resume_from: str | None, workers: int
    ) -> "RayGroup":
        """Start a group; returns before it is up."""
        config = {
            "job": job,
            "attempt": attempt,
            "resume_from": resume_from,
            "control": self._control,
        }
        return RayGroup(config, workers, self._what == "GPU")


def _answers(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), timeout=ANSWER).close()
    except OSError:
        return False
    return True


class RayGroup:
    """One attempt's workers: one call of Ray Train's `fit()`, in a thread of its own."""

    def __init__(self, config: Mapping[str, Any], workers: int, gpus: bool) -> None:
        """`config`: what `_worker` is given."""
        self._folder = RunFolder(config["job"].folder)
        self._attempt: Attempt = config["attempt"]
        self._control = config["control"]
        self._stop = False
        self._asked: Any = None  # the look that is on its way
        self._beats: Mapping[int, Beat] = {}
        self._killed: set[int] = set()  # pids
        self._over = threading.Event()
        self._error: BaseException | None = None
        threading.Thread(
            target=self._fit, args=(config, workers, gpus), name="fit", daemon=True
        ).start()

    def _fit(self, config: Mapping[str, Any], workers: int, gpus: bool) -> None:
        try:
            _trainer(config, workers, gpus).fit()
        except BaseException as error:
            self._error = error
        finally:
            self._over.set()

    def ended(self, wait: float) -> bool:
        """See Group."""
        return self._over.wait(wait)

    def failure(self) -> Failure | None:
        """See Group."""
        import ray.exceptions
        from ray.train.v2._internal.exceptions import WorkerHealthCheckFailedError
        from ray.train.v2.api.exceptions import TrainingFailedError, WorkerGroupError

        if self._error is None:
            return None
        step = max((beat.step for beat in self._beats.values()), default=0)
        step = max(step, self._attempt.resumed_step)
        if isinstance(self._error, WorkerGroupError):
            failures = self._error.worker_failures
            dead = [r for r, e in failures.items() if isinstance(e, WorkerHealthCheckFailedError)]
            return cause(failures, dead, self._raised(), step)
        if isinstance(self._error, TrainingFailedError | ray.exceptions.RayActorError):
            problem = f"Ray's controller of the attempt failed: {last_line(self._error)}"
            return Failure(problem, "Ray", step)
        raise self._error

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
        """See Group. A process that does not answer would keep Ray's own end waiting for it."""
        import ray

        here = ray.get_runtime_context().get_node_id()
        by_node: dict[str, list[int]] = {}
        for beat in self._beats.values():
            if beat.pid not in self._killed:
                by_node.setdefault(beat.node, []).append(beat.pid)
        for node, pids in by_node.items():
            self._killed.update(pids)
            if node == here:
                _kill(pids)
            else:
                _kill_there(node, pids)

    def release(self) -> None:
        """See Group. What a killed controller leaves reserved the next attempt would wait for."""
        from ray._raylet import PlacementGroupID
        from ray.util import remove_placement_group
        from ray.util.placement_group import PlacementGroup, placement_group_table

        started = self._events("worker_started")
        table: Mapping[str, Any] = placement_group_table()
        for hexadecimal in {event["placement_group"] for event in started} - {None}:
            if table.get(hexadecimal, {}).get("state") not in {None, "REMOVED"}:
                remove_placement_group(PlacementGroup(PlacementGroupID(bytes.fromhex(hexadecimal))))

    def _raised(self) -> Mapping[int, int]:
        """Steps done by each rank when it raised."""
        return {event["rank"]: event["step"] for event in self._events("worker_raised")}

    def _events(self, name: str) -> list[dict[str, Any]]:
        return [
            event
            for event in self._folder.events()
            if event["event"] == name and event["attempt"] == self._attempt.number
        ]


def _kill(pids: Sequence[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def _kill_there(node: str, pids: Sequence[int]) -> None:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    there = NodeAffinitySchedulingStrategy(node, soft=False)
    ray.remote(_kill).options(num_cpus=0, scheduling_strategy=there).remote(pids)


def _trainer(config: Mapping[str, Any], workers: int, gpus: bool) -> Any:
    from ray.train.torch import TorchConfig, TorchTrainer
    from ray.train.v2.api.config import FailureConfig, RunConfig, ScalingConfig

    job: Job = config["job"]
    attempt: Attempt = config["attempt"]
    return TorchTrainer(
        _worker,
        train_loop_config=dict(config),
        torch_config=TorchConfig(timeout_s=int(job.training.faults.collective_timeout)),
        scaling_config=ScalingConfig(
            num_workers=workers, resources_per_worker={"CPU": 1}, use_gpu=gpus
        ),
        run_config=RunConfig(  # type: ignore[arg-type] # typed as the one it replaced
            # A name that was used before would make Ray resume by its own record.
            name=f"attempt-{attempt.number:04d}",
            storage_path=storage.join(job.folder, "ray"),
            failure_config=FailureConfig(max_failures=0, controller_failure_limit=0),
            worker_runtime_env={"env_vars": WORKER_ENVIRONMENT},
        ),
    )


def _worker(config: Mapping[str, Any]) -> None:
    """What each Ray worker runs; the process group is up."""
    import ray
    import ray.train
    from ray.util.placement_group import get_current_placement_group

    job: Job = config["job"]
    attempt: Attempt = config["attempt"]
    folder, rank = RunFolder(job.folder), ray.train.get_context().get_world_rank()
    group = get_current_placement_group()
    folder.record(
        "worker_started",
        attempt=attempt.number,
        rank=rank,
        placement_group=group.id.hex() if group else None,
    )
    stepped = rank != 0  # only rank 0 says so

    def exchange(beat: Beat) -> bool:
        nonlocal stepped
        if not stepped and beat.step > attempt.resumed_step:
            stepped = True
            folder.record("first_step", attempt=attempt.number, step=beat.step)
        wanted: bool = ray.get(config["control"].exchange.remote(attempt.number, beat), timeout=5)
        return wanted

    node = ray.get_runtime_context().get_node_id()
    watch = Reporter(Beat(rank, os.getpid(), node), exchange, EXCHANGE)
    try:
        train(job, attempt, config["resume_from"], watch)
    except Exception:
        folder.record("worker_raised", attempt=attempt.number, rank=rank, step=watch.step)
        raise
    finally:
        watch.close()
