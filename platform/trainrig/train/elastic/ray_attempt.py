"""One attempt of a worker group on Ray: the exits of its ranks, as the supervisor sees them."""

import pickle
import threading
import time
from collections.abc import Callable, Mapping, Set
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from trainrig.processes.fork_server import MEMORY_RAN_OUT
from trainrig.processes.heartbeats import Heartbeat
from trainrig.processes.process_identity import Process
from trainrig.ray_runtime import ray_private
from trainrig.train.elastic.failure_cause import (
    LOST_NODE,
    describe_out_of_memory,
    find_cause,
    follows_peer,
    format_last_line,
)
from trainrig.train.elastic.ipc import RankError
from trainrig.train.elastic.messages import Assignment, Command, RankExit
from trainrig.train.elastic.restart_policy import Failure
from trainrig.train.elastic.worker_group import WorkerGroup
from trainrig.train.run.run_folder import RunFolder, TrainingAttempt

CALL_TIMEOUT = 1.0  # s for the coordinator, beyond what it was asked to wait
RETRY_SECONDS = 0.2  # s until one that was lost is asked again
SETTLE_SECONDS = 0.05  # s in which the ends of ranks that have one cause come in
# s in which Ray sees that a worker agent is gone, after other ranks lost their connection to its
# rank.
BLAME_TIMEOUT = 2.0
BLAME_POLL = 0.1  # s between two looks for that
# s for worker agents to end their ranks and stand by, after which they are killed as well; and for
# each, which the coordinator takes 0.8 ms for (tests/benchmarks/test_control_plane.py).
STAND_BY_TIMEOUT = 2.0
STAND_BY_PER_RANK = 0.001


class RayAttempt:
    """See AttemptHandle."""

    def __init__(
        self,
        folder: RunFolder,
        attempt: TrainingAttempt,
        coordinator: Any,
        group: WorkerGroup,
        reachable: Callable[[Set[str]], bool],
    ) -> None:
        """`coordinator`: the handle of the Coordinator actor; `reachable`: whether those nodes all
        do."""
        self._folder, self._attempt = folder, attempt
        self._coordinator, self._group, self._all_reachable = coordinator, group, reachable
        self._command = Command.TRAIN
        self._assignment: Assignment | None = None
        self._heartbeats: Mapping[int, Heartbeat] = {}
        self._exits: Mapping[int, RankExit] = {}
        self._lost_since: float | None = None
        self._killed: set[tuple[str, Process]] = set()  # by node
        self._killed_since: float | None = None
        self._stand_by_timeout = STAND_BY_TIMEOUT + STAND_BY_PER_RANK * group.workers

    def assign(self, work: bytes) -> None:
        """Have a worker group that stands by do `work`."""
        group = self._group
        self._assignment = Assignment(group.number, self._attempt.number, work, group.rendezvous)
        group.standing_by = False
        self._coordinator.assign.remote(self._assignment)

    def poll_end(self, wait: float) -> bool:
        """See AttemptHandle."""
        until = time.monotonic() + wait
        while not self._has_failed():
            left = until - time.monotonic()
            if left <= 0:
                return self._group.is_over()
            self._poll(min(left, BLAME_POLL) if self._exits else left)
        self._poll(SETTLE_SECONDS)
        return True

    def find_failure(self) -> Failure | None:
        """See AttemptHandle."""
        if not self._exits and self._group.is_over() and self._group.read_error() is None:
            return None
        # Here: who imports Ray Train imports pandas, too.
        from ray.exceptions import OutOfMemoryError
        from ray.train import TrainingFailedError, WorkerGroupError

        raised = {
            r: _unpickle_error(end.reason)
            for r, end in self._exits.items()
            if isinstance(end.reason, RankError)
        }
        dead = {r: end.reason for r, end in self._exits.items() if isinstance(end.reason, str)}
        step = max((heartbeat.step for heartbeat in self._heartbeats.values()), default=0)
        step = max(step, self._attempt.resumed_step)
        error = self._group.read_error() if self._group.is_over() else None
        if isinstance(error, WorkerGroupError):
            for rank, each in error.worker_failures.items():
                if ray_private.died_of_health_check(each):
                    dead[rank] = self._describe_agent_death(rank)
                else:
                    raised.setdefault(rank, each)
        elif error and not self._has_own_reason():
            if not isinstance(error, TrainingFailedError) and not self._group.controller_died():
                raise error
            problem = f"Ray's controller of the attempt failed: {format_last_line(error)}"
            memory = isinstance(error, OutOfMemoryError)
            if memory:
                problem = describe_out_of_memory(str(error))
            return Failure(problem, "Ray", step, memory=memory)
        if not raised and not dead:
            return None
        failure = find_cause(raised, dead, self._read_raised_steps(), step)
        node = self._find_node(failure.rank)
        return replace(failure, seen_by="Ray" if error else "agents", node=node)

    def heartbeats(self) -> Mapping[int, Heartbeat]:
        """See AttemptHandle."""
        return self._heartbeats

    def ask_to_stop(self) -> None:
        """See AttemptHandle."""
        self._command = Command.STOP
        self._coordinator.poll.remote(self._attempt.number, self._command, 0, 0.0)

    def kill(self) -> None:
        """See AttemptHandle. The ranks first: a worker agent that does not say so soon stands still
        as well."""
        now = time.monotonic()
        self._killed_since = self._killed_since or now
        self._kill(agents_too=now - self._killed_since > self._stand_by_timeout)

    def end_soon(self) -> None:
        """Have every rank ended, as far as one can be told, by a Ray that hardly does anything."""
        self._command = Command.END
        self._coordinator.poll.remote(self._attempt.number, self._command, 0, 0.0)
        self._kill(agents_too=True)

    def release(self) -> None:
        """See AttemptHandle. Worker agents that all stand by are kept for the next attempt."""
        self._command = Command.END
        until = time.monotonic() + self._stand_by_timeout
        while not self._group.is_over() and not self._have_all_exited():
            left = until - time.monotonic()
            if left <= 0 or self._has_lost_node():
                self._kill(agents_too=True)
                break
            self._poll(min(left, BLAME_POLL), exits=self._group.workers - 1)
        if self._have_all_exited() and not self._group.is_over():
            self._group.stand_by(self._exits)
        else:
            self._group.free()

    def _find_node(self, rank: int | None) -> str | None:
        """As far as it is known."""
        if rank is None:
            return None
        end = self._exits.get(rank)
        return end.node if end else self._group.nodes.get(rank)

    def _describe_agent_death(self, rank: int) -> str:
        """As far as its node tells: not even Ray knows which signal it was."""
        node, heartbeat = self._group.nodes.get(rank), self._heartbeats.get(rank)
        if node is None or heartbeat is None:
            return "its Ray worker died before it had said anything"
        if not self._all_reachable({node}):
            return f"{LOST_NODE} ({node[:8]})"
        if self._group.ended_for_memory(node, heartbeat.processes[-1].pid):
            return f"its Ray worker was ended, as {MEMORY_RAN_OUT} on its node ({node[:8]})"
        return "its Ray worker was killed or crashed; its node is well, and has memory"

    def _has_failed(self) -> bool:
        """Whether there is a reason not to wait any longer."""
        if self._group.is_over() or self._have_all_exited() or self._has_own_reason():
            return True
        if not self._exits:
            return False
        now = time.monotonic()
        self._lost_since = self._lost_since or now
        return now - self._lost_since > BLAME_TIMEOUT or self._has_lost_node()

    def _has_lost_node(self) -> bool:
        """Ray believes in a dead node for some seconds more."""
        return not self._all_reachable(set(self._group.nodes.values()))

    def _have_all_exited(self) -> bool:
        return len(self._exits) == self._group.workers

    def _has_own_reason(self) -> bool:
        """Whether a rank ended of itself, and not since another did."""
        reasons = [end.reason for end in self._exits.values()]
        return any(isinstance(reason, str) or not follows_peer(reason.line) for reason in reasons)

    def _poll(self, wait: float, exits: int | None = None) -> None:
        """Learn what is new at the coordinator: as soon as more ranks have ended than so many (if
        not said: than are known to have), or the worker group is no more, or after `wait` seconds.

        In a thread of its own: Ray swallows some of what signals raise in its code.
        """
        polled: Future[None] = Future()

        def poll() -> None:
            try:
                self._poll_once(wait, len(self._exits) if exits is None else exits)
                polled.set_result(None)
            except BaseException as error:
                polled.set_exception(error)

        threading.Thread(target=poll, name="poll", daemon=True).start()
        polled.result()

    def _poll_once(self, wait: float, exits: int) -> None:
        import ray
        import ray.exceptions

        asked = self._coordinator.poll.remote(self._attempt.number, self._command, exits, wait)
        news = [asked] if self._group.is_over() else [asked, self._group.fit]
        if asked not in ray.wait(news, timeout=wait + CALL_TIMEOUT)[0]:
            return
        try:
            seen = ray.get(asked)
        except ray.exceptions.RayActorError:  # Ray is starting another, which knows nothing
            time.sleep(min(wait, RETRY_SECONDS))
            if self._assignment:
                self._coordinator.assign.remote(self._assignment)
            return
        self._heartbeats = seen.heartbeats or self._heartbeats
        self._exits = {**self._exits, **seen.exits}
        self._group.nodes.update(
            {rank: heartbeat.node for rank, heartbeat in self._heartbeats.items()}
        )

    def _kill(self, agents_too: bool) -> None:
        wanted = {
            (heartbeat.node, process)
            for heartbeat in self._heartbeats.values()
            for process in (heartbeat.processes if agents_too else heartbeat.processes[:1])
        }
        self._group.kill(wanted - self._killed)
        self._killed |= wanted

    def _read_raised_steps(self) -> Mapping[int, int]:
        """Steps done by each rank when it raised."""
        return {
            event["rank"]: event["step"]
            for event in self._folder.read_events()
            if event["event"] == "worker_raised" and event["attempt"] == self._attempt.number
        }


def _unpickle_error(raised: RankError) -> Exception:
    """What the rank itself raised."""
    try:
        own: Exception = pickle.loads(raised.error)
    except Exception:  # made of what this machine lacks
        return RuntimeError(raised.line)
    return own
