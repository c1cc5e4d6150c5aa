"""One attempt of a worker group on Ray, as the supervisor sees it.

A Ray worker is a *worker agent*: it starts the process of a rank and watches it. After a rank's
failure, its agent *stands by*: it waits for the assignment of the next attempt.
"""

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
from trainrig.train.elastic import failure_cause
from trainrig.train.elastic.coordinator import Assignment, Command, RankError, RankExit
from trainrig.train.elastic.restart_policy import Failure
from trainrig.train.elastic.worker_group import WorkerGroup
from trainrig.train.run.run_folder import RunFolder, TrainingAttempt

CALL_TIMEOUT = 1.0  # s to wait for the coordinator's answer, beyond the wait it was asked for
RETRY_SECONDS = 0.2  # s between two calls to a lost coordinator
SETTLE_SECONDS = 0.05  # s in which further exits with the same cause arrive
# Seconds to wait, after ranks lost a peer, for the peer's exit or the report of Ray that its worker
# agent is dead.
BLAME_TIMEOUT = 2.0
BLAME_POLL = 0.1  # s between two polls during that wait
# Seconds for worker agents to end their ranks and stand by, before the agents are killed too; and
# more seconds per rank, as the coordinator takes 0.8 ms for each rank's messages
# (tests/benchmarks/test_control_plane.py).
STAND_BY_TIMEOUT = 2.0
STAND_BY_PER_RANK = 0.001


class RayAttempt:
    """Implementation of AttemptHandle for Ray."""

    def __init__(
        self,
        folder: RunFolder,
        attempt: TrainingAttempt,
        coordinator: Any,
        group: WorkerGroup,
        reachable: Callable[[Set[str]], bool],
    ) -> None:
        """Set up the handle of an attempt.

        A new group already has the attempt's task; a group that stands by gets it by `assign`.
        `coordinator`: handle of the Coordinator actor. `reachable`: returns whether all given nodes
        are reachable.
        """
        self._folder = folder
        self._attempt = attempt
        self._coordinator = coordinator
        self._group = group
        self._all_reachable = reachable
        self._command = Command.TRAIN
        self._assignment: Assignment | None = None
        self._heartbeats: Mapping[int, Heartbeat] = {}
        self._exits: Mapping[int, RankExit] = {}
        self._lost_since: float | None = None  # when it was seen that ranks had lost a peer
        # (node id, process) pairs that were sent SIGKILL
        self._killed: set[tuple[str, Process]] = set()
        self._killed_since: float | None = None
        self._stand_by_timeout = STAND_BY_TIMEOUT + STAND_BY_PER_RANK * group.workers

    def assign(self, work: bytes) -> None:
        """Give the pickled RankTask `work` to a worker group that stands by."""
        group = self._group
        self._assignment = Assignment(group.number, self._attempt.number, work, group.rendezvous)
        group.standing_by = False
        self._coordinator.assign.remote(self._assignment)

    def poll_end(self, wait: float) -> bool:
        """Return whether the attempt has ended or cannot go on; wait up to `wait` seconds for that.

        It cannot go on once a rank has failed. See AttemptHandle.
        """
        until = time.monotonic() + wait
        while not self._should_end():
            left = until - time.monotonic()
            if left <= 0:
                return self._group.is_over()
            self._poll(min(left, BLAME_POLL) if self._exits else left)
        self._poll(SETTLE_SECONDS)
        return True

    def find_failure(self) -> Failure | None:
        """Return why the attempt failed, or None if it succeeded; see AttemptHandle.

        Raises InputError for a problem that the user must fix, and whatever else ended the worker
        group that is not an error of Ray.
        """
        if not self._exits and self._group.is_over() and self._group.read_error() is None:
            return None
        # Imported here, as Ray Train imports pandas.
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
            for worker, raised_by_worker in error.worker_failures.items():
                rank = self._group.find_rank(worker)
                if failure_cause.is_dead_worker(raised_by_worker):
                    dead[rank] = self._describe_agent_death(rank, raised_by_worker)
                else:
                    raised.setdefault(rank, raised_by_worker)
        elif error and not self._any_failed_by_itself():
            if not isinstance(error, TrainingFailedError) and not self._group.controller_died():
                raise error
            problem = (
                f"Ray's controller of the attempt failed: {failure_cause.format_last_line(error)}"
            )
            memory = failure_cause.ended_for_memory(error)
            if memory:
                problem = failure_cause.describe_out_of_memory(str(error))
            return Failure(problem, "Ray", step, memory=memory)
        if not raised and not dead:
            return None
        failure = failure_cause.find_cause(raised, dead, self._read_raised_steps(), step)
        node = self._find_node(failure.rank)
        return replace(failure, seen_by="Ray" if error else "agents", node=node)

    def heartbeats(self) -> Mapping[int, Heartbeat]:
        """Return the newest heartbeat of each rank; see AttemptHandle."""
        return self._heartbeats

    def ask_to_stop(self) -> None:
        """Ask the ranks to stop; see AttemptHandle."""
        self._command = Command.STOP
        self._coordinator.poll.remote(self._attempt.number, self._command, 0, 0.0)

    def kill(self) -> None:
        """Kill the ranks; when called again after the stand-by timeout, kill their agents too.

        See AttemptHandle.
        """
        now = time.monotonic()
        self._killed_since = self._killed_since or now
        self._kill(agents_too=now - self._killed_since > self._stand_by_timeout)

    def end_soon(self) -> None:
        """Try to end every rank on an unresponsive Ray cluster, without waiting for an answer."""
        self._command = Command.END
        self._coordinator.poll.remote(self._attempt.number, self._command, 0, 0.0)
        self._kill(agents_too=True)

    def release(self) -> None:
        """End a failed attempt, and keep the worker agents if all of them stand by.

        See AttemptHandle.
        """
        self._command = Command.END
        until = time.monotonic() + self._stand_by_timeout
        while not self._group.is_over() and not self._have_all_exited():
            left = until - time.monotonic()
            if left <= 0 or self._is_node_lost():
                self._kill(agents_too=True)
                break
            self._poll(min(left, BLAME_POLL), exits=self._group.workers - 1)
        if self._have_all_exited() and not self._group.is_over():
            self._group.stand_by(self._exits)
        else:
            self._group.free()

    def _find_node(self, rank: int | None) -> str | None:
        """Return the node id of `rank`, or None if it is unknown."""
        if rank is None:
            return None
        end = self._exits.get(rank)
        return end.node if end else self._group.nodes.get(rank)

    def _describe_agent_death(self, rank: int, error: BaseException) -> str:
        """Return how the worker agent of `rank` died, as far as Ray's `error` and its node show.

        Ray does not report the signal.
        """
        node = self._group.nodes.get(rank)
        heartbeat = self._heartbeats.get(rank)
        if node is None or heartbeat is None:
            return "its Ray worker died before it sent a heartbeat"
        if not self._all_reachable({node}):
            return f"{failure_cause.LOST_NODE} ({node[:8]})"
        if failure_cause.ended_for_memory(error) or self._group.ran_out_of_memory(node):
            return f"its Ray worker was ended, as {MEMORY_RAN_OUT} on its node ({node[:8]})"
        return "its Ray worker was killed or crashed; its node is alive and has free memory"

    def _should_end(self) -> bool:
        """Return whether the attempt has ended or a rank has failed.

        If only ranks that lost a peer have exited, it returns False for up to BLAME_TIMEOUT, until
        the report on the lost rank, which names the cause, has arrived.
        """
        if self._group.is_over() or self._have_all_exited() or self._any_failed_by_itself():
            return True
        if not self._exits:
            return False
        now = time.monotonic()
        self._lost_since = self._lost_since or now
        return now - self._lost_since > BLAME_TIMEOUT or self._is_node_lost()

    def _is_node_lost(self) -> bool:
        """Return whether a node of the group is unreachable; Ray notices it seconds later."""
        return not self._all_reachable(set(self._group.nodes.values()))

    def _have_all_exited(self) -> bool:
        return len(self._exits) == self._group.workers

    def _any_failed_by_itself(self) -> bool:
        """Return whether a rank failed for another reason than the loss of a peer.

        Exits are failures only: ranks that finished their work are not among them.
        """
        reasons = [end.reason for end in self._exits.values()]
        return any(
            isinstance(reason, str) or not failure_cause.follows_peer(reason.line)
            for reason in reasons
        )

    def _poll(self, wait: float, exits: int | None = None) -> None:
        """Fetch heartbeats and exits from the coordinator.

        Returns as soon as more than `exits` ranks have exited (default: more than are known), the
        worker group is over, or `wait` seconds have passed. The call to Ray runs in another thread,
        as Ray swallows some exceptions that signal handlers raise inside its code.
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

        reports = self._coordinator.poll.remote(self._attempt.number, self._command, exits, wait)
        # The first of them to complete ends the wait: the reports, or the end of the worker group.
        awaited = [reports] if self._group.is_over() else [reports, self._group.fit]
        if reports not in ray.wait(awaited, timeout=wait + CALL_TIMEOUT)[0]:
            return
        try:
            polled = ray.get(reports)
        # The coordinator died. Ray restarts it with no state, so it needs the assignment again.
        except ray.exceptions.RayActorError:
            time.sleep(min(wait, RETRY_SECONDS))
            if self._assignment:
                self._coordinator.assign.remote(self._assignment)
            return
        self._heartbeats = polled.heartbeats or self._heartbeats
        self._exits = {**self._exits, **polled.exits}
        self._group.ranks = polled.ranks.get(self._group.number, self._group.ranks)
        self._group.nodes.update(
            {rank: heartbeat.node for rank, heartbeat in self._heartbeats.items()}
        )

    def _kill(self, agents_too: bool) -> None:
        # The first process of a heartbeat is the rank, the others are its worker agent's.
        targets = {
            (heartbeat.node, process)
            for heartbeat in self._heartbeats.values()
            for process in (heartbeat.processes if agents_too else heartbeat.processes[:1])
        }
        self._group.kill(targets - self._killed)
        self._killed |= targets

    def _read_raised_steps(self) -> Mapping[int, int]:
        """Return the number of updates that each rank had made when it raised, by rank."""
        return {
            event["rank"]: event["step"]
            for event in self._folder.read_events()
            if event["event"] == "worker_raised" and event["attempt"] == self._attempt.number
        }


def _unpickle_error(raised: RankError) -> Exception:
    """Return the exception that the rank raised, or its text as a RuntimeError."""
    try:
        error: Exception = pickle.loads(raised.error)
    except Exception:  # the exception's class cannot be imported here
        return RuntimeError(raised.line)
    return error
