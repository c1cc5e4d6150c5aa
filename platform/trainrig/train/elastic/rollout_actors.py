"""The actors on Ray that sample for a run, beside its workers.

The driver looks at the run folder, not at the workers: units that are asked for and not there are
given to actors that are free, those of the oldest batch first. So a driver that follows another, or
an actor that died, goes on from what is there, and it makes no difference how many actors there
are, when they come and when they go.
"""

import contextlib
import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from trainrig.errors import ClusterError, ClusterLost, TrainrigError
from trainrig.processes.lease import follow_lease
from trainrig.ray_runtime import ray_private
from trainrig.ray_runtime.ray_local import call_while_ray_lives
from trainrig.ray_runtime.ray_pools import Need
from trainrig.train.elastic.failure_cause import format_last_line
from trainrig.train.elastic.worker_agent import find_given_device
from trainrig.train.job import TrainingJob
from trainrig.train.rollout_pool.requests import (
    RolloutRequest,
    choose_poll_interval,
    find_open,
    name_rollouts_folder,
    write_failure,
)
from trainrig.train.run.run_folder import RunFolder
from trainrig.train.worker_bounds import parse_bounds

log = logging.getLogger(__name__)
LOOK_AT_NODES = 1.0  # s between two looks at how much room there is
LOST_AGAIN = 0.5  # s until Ray is looked for again after it was lost
TURN = 1.0  # s that looks go on, in a thread that is left to itself once Ray is lost
# s without room for the workers until an actor beyond the fewest makes some: groups that start have
# not said yet where they are.
YIELD_AFTER = 10.0
TRIES = 3  # of a unit whose sampling raises, and of actors that die before they sampled anything
LONGEST_PROBLEM = 500  # characters

Unit = tuple[str, int]  # folder of the request, and number


@dataclass
class _Actor:
    """One of the pool, as the driver knows it."""

    number: int
    handle: Any
    node: str = ""  # empty: not up yet
    leaving: bool = False  # its node is to go
    asked: Any = None  # the object that it is at
    unit: tuple[RolloutRequest, int] | None = None  # that is; None: its start, or nothing
    since: float = 0.0  # when it began with that


class RolloutPool:
    """The actors of one run, from one driver's start to its end."""

    def __init__(self, job: TrainingJob, need: Need, room: Callable[[], int]) -> None:
        """`need`: what an actor takes of a node; `room`: for how many the workers leave some."""
        self._job, self._need, self._room = job, need, room
        self._wanted = parse_bounds(job.rollout_actors)
        self._folder = RunFolder(job.folder)
        self._rollouts = name_rollouts_folder(self._folder)
        self._faults = job.training.faults
        self._actors: list[_Actor] = []
        self._numbers = itertools.count(1)
        self._tries: dict[Unit, int] = {}
        self._lost = 0  # actors in a row, none of which had sampled anything
        self._longest = 0.0  # s that a unit took
        self._looked = float("-inf")
        self._short_since: float | None = None  # the workers lack room
        self._turn = 0  # of looks; those of another are over
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rollouts", daemon=True)

    def __enter__(self) -> Self:
        if self._wanted.most:
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closing.set()
        if self._wanted.most:
            self._thread.join()
            with contextlib.suppress(ClusterLost):
                call_while_ray_lives(self._end_all)

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                call_while_ray_lives(self._look_on, self._turn)
                continue
            except ClusterLost:  # the supervisor of the run starts another, or ends
                self._actors = []
            except Exception as error:  # raised by the ranks, who wait
                log.exception("rollout actors")
                self._fail_all(ClusterError(f"rollout actors: {format_last_line(error)}"))
            self._turn += 1
            self._closing.wait(LOST_AGAIN)

    def _look_on(self, turn: int) -> None:
        import ray

        until, pause = time.monotonic() + TURN, choose_poll_interval(self._rollouts)
        while turn == self._turn and not self._closing.is_set() and time.monotonic() < until:
            if not ray.is_initialized():  # between two clusters
                self._actors = []
                self._closing.wait(LOST_AGAIN)
                return
            if time.monotonic() - self._looked >= LOOK_AT_NODES:
                self._looked = time.monotonic()
                self._resize()
            self._give_out()
            asked = [each.asked for each in self._actors if each.asked]
            if asked:
                ray.wait(asked, timeout=pause)
                self._collect()
            else:
                self._closing.wait(pause)

    def _give_out(self) -> None:
        free = [each for each in self._actors if each.node and not each.asked and not each.leaving]
        if not free:
            return
        for actor, (request, index) in zip(free, self._list_units(), strict=False):
            actor.unit, actor.since = (request, index), time.monotonic()
            actor.asked = actor.handle.sample.remote(request, index)

    def _list_units(self) -> Iterator[tuple[RolloutRequest, int]]:
        under_way = {(each.unit[0].folder, each.unit[1]) for each in self._actors if each.unit}
        for request, missing in find_open(self._rollouts):
            for index in missing:
                if (request.folder, index) not in under_way:
                    yield request, index

    def _collect(self) -> None:
        """See what has become of what the actors were asked."""
        import ray
        import ray.exceptions

        asked = {each.asked: each for each in self._actors if each.asked}
        done, _ = ray.wait(list(asked), num_returns=len(asked), timeout=0) if asked else ([], [])
        for reference in done:
            actor = asked[reference]
            unit, actor.asked, actor.unit = actor.unit, None, None
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
        for actor in [each for each in self._actors if each.unit]:
            if now - actor.since > self._compute_unit_timeout():
                self._lose(actor, f"no unit for {now - actor.since:.0f} s")

    def _record_begin(self, actor: _Actor, answer: str | TrainrigError) -> None:
        if isinstance(answer, TrainrigError):  # it can sample nothing, and nor can another
            self._fail_all(answer)
            self._end(actor)
        else:
            actor.node = answer

    def _handle_failure(self, request: RolloutRequest, index: int, error: TrainrigError) -> None:
        """Sampling a unit has raised: try again where that may help, and it is still asked for."""
        unit = request.folder, index
        self._tries[unit] = self._tries.get(unit, 0) + 1
        again = isinstance(error, ClusterError) and self._tries[unit] < TRIES
        still = any(each.folder == request.folder for each, _ in find_open(self._rollouts))
        if again or not still:
            return
        del self._tries[unit]
        write_failure(request.folder, error)

    def _compute_unit_timeout(self) -> float:
        """Seconds that a unit may take. The first may compile and allocate."""
        faults = self._faults
        if not self._longest:
            return faults.start_limit
        return max(faults.hang_seconds, faults.hang_steps * self._longest)

    def _lose(self, actor: _Actor, why: str) -> None:
        """It died, or is as good as dead; another will sample what it was at."""
        self._record("rollout_actor_lost", actor=actor.number, problem=why)
        log.warning("rollout actor %d: %s", actor.number, why)
        self._end(actor)
        self._lost += 1
        if self._lost >= TRIES * max(1, self._wanted.least):
            self._lost = 0
            self._fail_all(
                ClusterError(f"rollout actors die before they sample anything; the last: {why}")
            )
        self._looked = float("-inf")

    def _end(self, actor: _Actor) -> None:
        import ray

        self._actors.remove(actor)
        with contextlib.suppress(Exception):  # it is dead, or Ray is
            ray.kill(actor.handle)

    def _end_all(self) -> None:
        for actor in list(self._actors):
            self._end(actor)

    def _resize(self) -> None:
        """Have the fewest, whether there is room or not, and more as long as the workers leave
        some."""
        draining = ray_private.list_draining_nodes()
        for actor in list(self._actors):
            if actor.node in draining and not actor.leaving:
                self._leave(actor)
            if actor.leaving and not actor.asked:
                self._end(actor)
        surviving = [each for each in self._actors if not each.leaving]
        wanted, starting = self._wanted.least, any(not each.node for each in surviving)
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
        """Give it no more to do; it ends after what it is at."""
        actor.leaving = True
        self._record("rollout_actor_leaves", actor=actor.number, node=actor.node)

    def _start(self) -> _Actor:
        import ray

        kind: Any = ray.remote(RolloutActor)
        number, gpus = next(self._numbers), self._need.get("GPU", 0)
        handle = kind.options(num_cpus=self._need["CPU"], num_gpus=gpus, max_restarts=0).remote()
        return _Actor(number, handle, asked=handle.begin.remote(self._job, number))

    def _fail_all(self, error: TrainrigError) -> None:
        """Have the ranks raise `error`, whatever they wait for."""
        with contextlib.suppress(OSError, TrainrigError):
            for request, _ in find_open(self._rollouts):
                write_failure(request.folder, error)

    def _record(self, event: str, **details: Any) -> None:
        self._folder.record(event, **details)


class RolloutActor:
    """An actor that samples units, one at a time."""

    def __init__(self) -> None:
        self._sampler: Any = None
        self._until_it_ends = contextlib.ExitStack()

    def begin(self, job: TrainingJob, number: int) -> str | TrainrigError:
        """Load what sampling needs; the node that this is on, or what trainrig foresees of why it
        can't."""
        import ray

        # Here, as torch takes seconds to import, and the driver imports this module.
        from trainrig.train.rollout_pool.sampler import RolloutSampler

        node: str = ray.get_runtime_context().get_node_id()
        try:
            self._until_it_ends.enter_context(follow_lease(job.folder))
            self._sampler = RolloutSampler(job, find_given_device())
        except TrainrigError as error:
            return error
        RunFolder(job.folder).record("rollout_actor_started", actor=number, node=node)
        return node

    def sample(self, request: RolloutRequest, index: int) -> TrainrigError | None:
        """Put unit `index` of `request` where that is; else what trainrig foresees of why not."""
        try:
            self._sampler.sample(request, index)
        except TrainrigError as error:
            return error
        return None
