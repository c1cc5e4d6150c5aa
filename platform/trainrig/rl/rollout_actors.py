"""Pool of Ray actors that sample rollouts for a run, in addition to its workers.

The driver watches the run folder, not the workers. It gives each requested unit without a result to
a free actor, those of the oldest batch first. So a new driver, or the replacement of a dead actor,
continues from the stored units. The result does not depend on how many actors there are, nor on
when they start and end.
"""

import contextlib
import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from trainrig.errors import ClusterError, ClusterLost, TrainrigError
from trainrig.processes.lease import follow_lease
from trainrig.ray_runtime import ray_private
from trainrig.ray_runtime.node_placement import name_actor
from trainrig.ray_runtime.ray_local import call_while_ray_lives
from trainrig.rl import rollout_requests
from trainrig.train.elastic.failure_cause import format_last_line
from trainrig.train.elastic.worker_agent import find_given_device
from trainrig.train.run.run_folder import RunFolder
from trainrig.train.training_job import TrainingJob

log = logging.getLogger(__name__)
CHECK_NODES_EVERY = 1.0  # s between two checks of the free capacity
RETRY_AFTER_LOSS = 0.5  # s between two attempts to find Ray after it was lost
POLL_TURN = 1.0  # s that one polling thread runs; it is abandoned if Ray is lost meanwhile
# Seconds without space for the workers until surplus actors are ended: workers that are starting
# have not reported their nodes yet.
YIELD_AFTER = 10.0
TRIES = 3  # tries of a failing unit, and deaths of actors in a row before sampling anything
LONGEST_PROBLEM = 500  # characters of a recorded problem

Unit = tuple[str, int]  # request folder and unit index


@dataclass
class _Actor:
    """One actor of the pool, as the driver knows it."""

    number: int
    handle: Any
    node: str = ""  # node id; empty until the actor has started
    leaving: bool = False  # True if it must end, as its node is going away or its place is needed
    call: Any = None  # Ray object reference of the call in progress
    unit: tuple[rollout_requests.RolloutRequest, int] | None = (
        None  # unit of that call; None: its start, or no call
    )
    since: float = 0.0  # when that call began


class RolloutPool:
    """Rollout actors of one run, during the life of one driver; a context manager."""

    def __init__(
        self, job: TrainingJob, need: Mapping[str, float], room: Callable[[], int]
    ) -> None:
        """Set up the pool; entering the context starts it.

        `need`: resources of one actor. `room`: returns how many actors fit next to the workers,
        negative if the workers lack space themselves.
        """
        self._job = job
        self._need = need
        self._room = room
        assert job.extra_actors, "only a job with actors has a pool"
        self._wanted = job.extra_actors.bounds
        self._folder = RunFolder(job.folder)
        self._rollouts = rollout_requests.name_rollouts_folder(self._folder)
        self._faults = job.training.faults
        self._actors: list[_Actor] = []
        self._numbers = itertools.count(1)
        self._tries: dict[Unit, int] = {}
        self._lost = 0  # actors lost in a row without a unit sampled in between
        self._longest = 0.0  # longest time of a unit, in s
        self._looked = float("-inf")
        # when the workers began to lack space; None: they do not
        self._short_since: float | None = None
        self._turn = 0  # number of the current polling thread; older ones stop
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rollouts", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closing.set()
        self._thread.join()
        with contextlib.suppress(ClusterLost):
            call_while_ray_lives(self._end_all)

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                call_while_ray_lives(self._serve_requests, self._turn)
                continue
            except ClusterLost:  # the supervisor of the run starts another cluster, or ends
                self._actors = []  # the waiting ranks raise it
            except Exception as error:  # raised by the ranks, who wait
                log.exception("rollout actors")
                self._fail_all(ClusterError(f"rollout actors: {format_last_line(error)}"))
            self._turn += 1
            self._closing.wait(RETRY_AFTER_LOSS)

    def _serve_requests(self, turn: int) -> None:
        import ray

        until = time.monotonic() + POLL_TURN
        pause = rollout_requests.choose_poll_interval(self._rollouts)
        while turn == self._turn and not self._closing.is_set() and time.monotonic() < until:
            if not ray.is_initialized():  # while the run changes clusters
                self._actors = []
                self._closing.wait(RETRY_AFTER_LOSS)
                return
            if time.monotonic() - self._looked >= CHECK_NODES_EVERY:
                self._looked = time.monotonic()
                self._resize()
            self._assign_units()
            calls = [actor.call for actor in self._actors if actor.call]
            if calls:
                ray.wait(calls, timeout=pause)
                self._collect()
            else:
                self._closing.wait(pause)

    def _assign_units(self) -> None:
        free = [
            actor for actor in self._actors if actor.node and not actor.call and not actor.leaving
        ]
        if not free:
            return
        for actor, (request, index) in zip(free, self._list_units(), strict=False):
            actor.unit = (request, index)
            actor.since = time.monotonic()
            actor.call = actor.handle.sample.remote(request, index)

    def _list_units(self) -> Iterator[tuple[rollout_requests.RolloutRequest, int]]:
        under_way = {(actor.unit[0].folder, actor.unit[1]) for actor in self._actors if actor.unit}
        for request, missing in rollout_requests.find_open(self._rollouts):
            for index in missing:
                if (request.folder, index) not in under_way:
                    yield request, index

    def _collect(self) -> None:
        """Process the finished calls of the actors, and end actors that take too long."""
        import ray
        import ray.exceptions

        actors = {actor.call: actor for actor in self._actors if actor.call}
        done, _ = ray.wait(list(actors), num_returns=len(actors), timeout=0) if actors else ([], [])
        for reference in done:
            actor = actors[reference]
            unit = actor.unit
            actor.call = None
            actor.unit = None
            try:
                answer = ray.get(reference)
            except ray.exceptions.RayActorError as error:
                self._lose(
                    actor, format_last_line(error).partition(". ")[0].partition(" Worker exit")[0]
                )
                continue
            except ray.exceptions.RayError as error:
                answer = ClusterError(format_last_line(error)[:LONGEST_PROBLEM])
            if unit is None:
                self._record_begin(actor, answer)
            elif isinstance(answer, TrainrigError):
                self._handle_failure(*unit, answer)
            else:
                self._lost = 0
                self._longest = max(self._longest, time.monotonic() - actor.since)
        now = time.monotonic()
        for actor in [actor for actor in self._actors if actor.unit]:
            if now - actor.since > self._compute_unit_timeout():
                self._lose(actor, f"no completed unit for {now - actor.since:.0f} s")

    def _record_begin(self, actor: _Actor, answer: str | TrainrigError) -> None:
        if isinstance(answer, TrainrigError):  # no other actor could start either
            self._fail_all(answer)
            self._end(actor)
        else:
            actor.node = answer

    def _handle_failure(
        self, request: rollout_requests.RolloutRequest, index: int, error: TrainrigError
    ) -> None:
        """Handle an error in sampling a unit: retry a cluster error, otherwise report it.

        A unit that is no longer requested is ignored.
        """
        unit = request.folder, index
        self._tries[unit] = self._tries.get(unit, 0) + 1
        again = isinstance(error, ClusterError) and self._tries[unit] < TRIES
        still = any(
            opened.folder == request.folder
            for opened, _ in rollout_requests.find_open(self._rollouts)
        )
        if again or not still:
            return
        del self._tries[unit]
        rollout_requests.write_failure(request.folder, error)

    def _compute_unit_timeout(self) -> float:
        """Return the seconds that a unit may take; the first may compile and allocate."""
        faults = self._faults
        if not self._longest:
            return faults.start_limit
        return max(faults.hang_seconds, faults.hang_steps * self._longest)

    def _lose(self, actor: _Actor, why: str) -> None:
        """Remove an actor that died or hangs; its unit is then given to another one."""
        self._record("rollout_actor_lost", actor=actor.number, problem=why)
        log.warning("rollout actor %d: %s", actor.number, why)
        self._end(actor)
        self._lost += 1
        if self._lost >= TRIES * max(1, self._wanted.least):
            self._lost = 0
            self._fail_all(
                ClusterError(f"rollout actors end before they sample anything; the last: {why}")
            )
        self._looked = float("-inf")

    def _end(self, actor: _Actor) -> None:
        import ray

        self._actors.remove(actor)
        with contextlib.suppress(Exception):  # the actor or Ray is already dead
            ray.kill(actor.handle)

    def _end_all(self) -> None:
        for actor in list(self._actors):
            self._end(actor)

    def _resize(self) -> None:
        """Start the minimum of actors in any case, and more while the workers leave space.

        Actors on draining nodes are ended after their current unit.
        """
        draining = ray_private.list_draining_nodes()
        for actor in list(self._actors):
            if actor.node in draining and not actor.leaving:
                self._leave(actor)
            if actor.leaving and not actor.call:
                self._end(actor)
        surviving = [actor for actor in self._actors if not actor.leaving]
        wanted = self._wanted.least
        starting = any(not actor.node for actor in surviving)
        if self._wanted.most > wanted and len(surviving) >= wanted and not starting:
            room = self._room()
            wanted = max(wanted, min(self._wanted.most, len(surviving) + room))
            self._short_since = (self._short_since or time.monotonic()) if room < 0 else None
            short = self._short_since
            if short is not None and time.monotonic() - short > YIELD_AFTER:
                self._short_since = None
                for actor in surviving[wanted:]:
                    self._leave(actor)
        for _ in range(wanted - len(surviving)):
            self._actors.append(self._start())

    def _leave(self, actor: _Actor) -> None:
        """Give `actor` no more units; it ends after the current one."""
        actor.leaving = True
        self._record("rollout_actor_leaves", actor=actor.number, node=actor.node)

    def _start(self) -> _Actor:
        import ray

        kind: Any = ray.remote(RolloutActor)
        number = next(self._numbers)
        gpus = self._need.get("GPU", 0)
        handle = kind.options(
            name=name_actor("rollouts", number),
            num_cpus=self._need["CPU"],
            num_gpus=gpus,
            max_restarts=0,
        ).remote()
        return _Actor(number, handle, call=handle.begin.remote(self._job, number))

    def _fail_all(self, error: TrainrigError) -> None:
        """Have the ranks raise `error`, for every request that they wait for."""
        with contextlib.suppress(OSError, TrainrigError):
            for request, _ in rollout_requests.find_open(self._rollouts):
                rollout_requests.write_failure(request.folder, error)

    def _record(self, event: str, **details: Any) -> None:
        self._folder.record(event, **details)


class RolloutActor:
    """Ray actor that samples units, one at a time."""

    def __init__(self) -> None:
        self._sampler: Any = None
        self._until_it_ends = contextlib.ExitStack()

    def begin(self, job: TrainingJob, number: int) -> str | TrainrigError:
        """Load what sampling needs; return this node's id, or the error if that fails."""
        import ray

        # Imported here: torch takes seconds to import, and the driver imports this module.
        from trainrig.rl.sampler_process import RolloutSampler

        node: str = ray.get_runtime_context().get_node_id()
        try:
            self._until_it_ends.enter_context(follow_lease(job.folder))
            self._sampler = RolloutSampler(job, find_given_device())
        except TrainrigError as error:
            return error
        RunFolder(job.folder).record("rollout_actor_started", actor=number, node=node)
        return node

    def sample(self, request: rollout_requests.RolloutRequest, index: int) -> TrainrigError | None:
        """Sample unit `index` of `request` and store it; return the error if that fails."""
        try:
            self._sampler.sample(request, index)
        except TrainrigError as error:
            return error
        return None
